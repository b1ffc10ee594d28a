-- Workers --------------------------------------------------------------------------------------------------------

-- name: keep_metrics
update workers set metrics = :metrics, metrics_at = :now, seen_at = {greatest}(seen_at, :now) where name = :name returning name

-- name: note_seen
update workers set seen_at = {greatest}(seen_at, :now), stopped_at = null where name = :name and (seen_at <= :before or stopped_at is not null)

-- name: workers_besides
select count(*) from workers where name <> :name

-- name: workers_after
select {worker}, about, metrics, metrics_at, registered_at, seen_at, stopped_at
from workers where name > :after order by name limit :count

-- The runs that these workers hold now: their number, and the first few of them. Live leases only, so it is short.
-- name: held_by_workers
select worker, held, id from (
  select l.worker, l.id, l.claimed_at, l.seq, count(*) over (partition by l.worker) as held,
    row_number() over (partition by l.worker order by l.claimed_at, l.seq) as n
  from job_runs l where l.lease_check_at is not null and l.worker {in_texts: names}) as h
where h.n <= :few order by worker, claimed_at, seq

-- The runs of a queue that each worker holds and that are not being cancelled.
-- name: held_of_queue
select l.worker, count(*) from job_runs l
where l.lease_check_at is not null and l.queue || '' = :queue and l.state || '' {from: succeed succeeded}
group by l.worker order by l.worker

-- All leases, by their length. A lease that seems to begin later than now is as doubtful as an expired one.
-- name: leases
select worker, lease, count(*), sum(over), min(case over when 1 then lease_until end), min(case over when 0 then lease_until end) from (
  select l.worker, l.lease, l.lease_until, case when l.lease_until <= :now or l.lease_until - l.lease > :now + 1000 then 1 else 0 end as over
  from job_runs l where l.lease_check_at is not null) as h
group by worker, lease order by worker, lease limit :count

-- When the first of the runs is due that lost their worker in their last attempt and are retried.
-- name: recovered_due
select r.due_at from job_runs r join job_attempts a on a.run {probe: r.seq} and a.n = r.attempt - 1 and a.outcome = 'lapsed'
where r.state = 'scheduled' and r.due_at <= :until order by r.due_at, r.seq limit 1

-- name: worker_about
select about from workers where name = :name

-- If another process of the same name may still run, only this one's own data is removed. One that started meanwhile has written more.
-- name: stop_worker
update workers set
  stopped_at = case when exists (select 1 from worker_lives l where l.worker = workers.name) then stopped_at else :now end,
  about = case when exists (select 1 from worker_lives l where l.worker = workers.name) then null else about end
where name = :name and coalesce(about, '') = :about

-- name: silent_workers
select name from workers where seen_at < :before order by name limit :count

-- name: drop_workers
delete from workers where name {in_texts: names} and seen_at < :before returning name

-- name: worker_named
select seen_at from workers where name = :name

-- name: drop_lives
delete from worker_lives where worker {in_texts: names} and not exists (select 1 from workers w where w.name = worker_lives.worker)

-- Lives: the processes of workers --------------------------------------------------------------------------------

-- Only those of registered workers: they are removed together.
-- name: begin_life
insert into worker_lives (worker, tag, process, began_at)
select name, :tag, :process, :now from workers where name = :worker
on conflict (worker, tag) do nothing

-- name: lives
select tag, process from worker_lives where worker = :worker order by began_at, tag

-- Live leases only, so it is short.
-- name: held_by_lives
select {run} from job_runs where lease_check_at is not null and worker = :worker and substr(token, 1, 8) {in_texts: tags} order by lease_check_at, seq limit :count

-- name: end_lives
delete from worker_lives where worker = :worker and tag {in_texts: tags}

-- Counts -------------------------------------------------------------------------------------------------------------

-- name: add_minutes
insert into job_minutes (minute, queue, job, {counts})
select minute, queue, job, {counts}
from {rows: r: minute int, queue text, job text, *counts}
where true
on conflict (minute, queue, job) do update
  set {each: counts: @ = job_minutes.@ + excluded.@}

-- name: add_totals
insert into job_totals (queue, job, since, {unfinished}, {counts})
select queue, job, :now, {unfinished}, {counts}
from {rows: r: queue text, job text, *unfinished, *counts}
where true
on conflict (queue, job) do update
  set {each: unfinished: @ = job_totals.@ + excluded.@},
    {each: counts: @ = job_totals.@ + excluded.@}

-- Counts of a queue and a job that no longer exist are kept without their names, so that the totals stay the same.
-- fragment: nothing_left
queue <> '' and {all: unfinished: @ = 0}

-- name: idle_totals
select queue, job from job_totals where {nothing_left}

-- fragment: totals_named
exists (select 1 from {rows: r: queue text, job text} where r.queue = job_totals.queue and r.job = job_totals.job) and {nothing_left}

-- name: lock_totals postgres
select 1 from job_totals where {totals_named} order by queue, job for update

-- name: keep_totals
insert into job_totals (queue, job, since, {unfinished}, {counts})
select '', '', 0, {each: unfinished: 0}, {each: counts: sum(@)} from job_totals where {totals_named} having count(*) > 0
on conflict (queue, job) do update
  set {each: counts: @ = job_totals.@ + excluded.@}

-- name: drop_totals
delete from job_totals where {totals_named}

-- fragment: old_minutes
select minute from job_minutes where minute < :before order by minute limit :count

-- Whole minutes, and not too many rows at once.
-- name: drop_minutes
delete from job_minutes where minute {among: old_minutes}

-- name: whole_totals
select {each: unfinished: sum(@)}, {each: counts: sum(@)} from job_totals

-- In an order that does not change: listed pairs stay listed.
-- name: totals
select queue, job, {unfinished}, {counts} from job_totals where queue <> '' order by since, queue, job limit :count

-- The minute in which the readable rows end. The key has it, so this reads no rows.
-- name: minute_behind
select minute from job_minutes where minute >= :since order by minute desc limit 1 offset :count

-- name: minutes_since
select minute, {each: counts: sum(@)} from job_minutes where minute >= :since group by minute order by minute

-- name: jobs_since
select queue, job, {each: counts: sum(@)} from job_minutes where minute >= :since group by queue, job order by queue, job
