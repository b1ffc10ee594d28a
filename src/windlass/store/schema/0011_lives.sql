-- Processes that work or worked under a worker's name. The tokens of their claims begin with `tag`; `process` is for their host to read.

create table worker_lives (
  worker text not null,
  tag text not null,
  process text not null,
  began_at {int} not null,
  primary key (worker, tag)
) {clustered};
