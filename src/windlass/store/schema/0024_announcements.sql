-- Which queued runs were announced to a queue outside of the store, or are to be. `rev`: the run's when it was queued or announced; `at`: when it was
-- announced; 0: not yet. Only runs of queues that are announced have a row. No key refers to the run, which is then written without looking here.
create table job_announcements (
  run {int} not null primary key,
  queue text not null,
  rev {int} not null,
  at {int} not null
) {clustered};

-- `+ 0` makes this an index for lists only, and no way to a single run, whatever PostgreSQL thinks of the sizes.
create index job_announcements_at on job_announcements (queue, at, (run + 0));

-- The queues whose runs are announced, and up to where the journal has been read for runs that were queued in them.
create table job_announcers (
  queue text not null primary key,
  cursor text not null
) {clustered};

-- What a definition is for, in words for people.
alter table jobs add column description text;
