#!lua flags=allow-oom
-- It adds next to nothing, and what it ends makes room: so it is done also when the server's memory is full.
