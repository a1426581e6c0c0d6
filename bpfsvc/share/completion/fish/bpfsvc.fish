function _bpfsvc_completion;
    set -l response (env _BPFSVC_COMPLETE=fish_complete COMP_WORDS=(commandline -cp) COMP_CWORD=(commandline -t) bpfsvc);

    # What is offered stands in place of the whole word, "--flag=" too.
    set -l flag (string match --regex -- '^--[^=]*=' (commandline -t));

    for completion in $response;
        set -l metadata (string split --max 1 "," $completion);

        if test $metadata[1] = "dir";
            __fish_complete_directories $metadata[2];
        else if test $metadata[1] = "file";
            __fish_complete_path $metadata[2];
        else if test $metadata[1] = "plain";
            echo "$flag$metadata[2]";
        end;
    end;
end;

complete --no-files --command bpfsvc --arguments "(_bpfsvc_completion)";
