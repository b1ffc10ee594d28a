-- The runs of a queue by state, newest first. Those of the queue in which runs are by default are left out, so that a store with only that one has
-- nothing to write here. `+ 0` makes this an index for lists only, and no way to a single run, whatever PostgreSQL thinks of the sizes. The
-- priority is in it so that ten thousand runs can be ranked without reading their rows.
create index job_runs_queue on job_runs (queue, state, (seq + 0), priority_key, aging_priority) where queue <> 'default';

-- 1: a worker that takes runs which bring a program, whatever their jobs. Until now all did that were able to.
alter table workers add column programs {int} not null default 0;
update workers set programs = 1 where tags like '%"solver"%';
