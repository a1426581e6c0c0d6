/* A browser starts no worker for a page that is opened as a file, so search runs in an empty frame there. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script src="${url}"></script>`;
      this.started = new Promise((resolve) => {
        frame.addEventListener("load", () => {
          frame.contentWindow.postMessage = (data) =>
            this.dispatchEvent(new MessageEvent("message", { data }));
          resolve(frame.contentWindow);
        });
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.started.then((frame) => frame.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
