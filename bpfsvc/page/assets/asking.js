// Questions to the server of the page.

// Of the page of all nodes: the node that is asked.
export const asksFor = new URLSearchParams(location.search).get("node");

export async function ask(path) {
  const of = asksFor ? `${path}${path.includes("?") ? "&" : "?"}${new URLSearchParams({ node: asksFor })}` : path;
  const response = await fetch(of, { headers: { Accept: "application/json" } });
  const answer = await response.json().catch(() => ({ error: `the node answers ${response.status}` }));
  if (!response.ok) throw new Error([answer.error, answer.hint].filter(Boolean).join("; "));
  return answer;
}

// What is said of an error: a browser has no words for a server that does not answer.
export const errorText = (error) => (error instanceof TypeError ? "no answer from this node" : error.message);
