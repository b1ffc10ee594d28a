-- Checks of the doctor. All of them only read, and stop at their limits ----------------------------------------------

-- How many runs wait in each lane, ready ones and parked ones, and when the first ready one was due. A parked run's lane is negative.
-- name: lanes_waiting
select l.id,
  (select count(*) from (select 1 from job_runs q where q.state = 'queued' and q.lane = l.id limit :limit) as w),
  (select count(*) from (select 1 from job_runs p where p.state = 'queued' and p.lane = -l.id limit :limit) as w),
  (select f.due_at from job_runs f where f.state = 'queued' and f.lane = l.id order by f.lane, f.priority_key, f.position, f.seq limit 1)
from job_lanes l order by l.id

-- name: late_runs
select due_at from job_runs where state = 'scheduled' and due_at <= :now order by due_at, seq limit :count

-- name: newest_entry
select at from job_journal where entry <= :last order by entry desc limit 1

-- Leases that expired, among the newest entries, with their workers.
-- name: lapses
select r.job, n.worker
from (select e.run, e.worker, e.move, e.at from job_journal e where e.entry <= :last order by e.entry desc limit :count) as n
join job_runs r on r.seq {probe: n.run}
where n.move = 'lapse' and n.at >= :since and n.worker is not null

-- How long the last runs of each job with this end took, and their limits.
-- name: runtimes sqlite
select r.job, r.max_runtime, r.policy, r.finished_at - r.claimed_at from json_each(:names) as l cross join job_runs as r
where r.seq in (
  select q.seq from job_runs q indexed by job_runs_job_ended
  where q.finished_at is not null and q.job = l.value and q.state = :state order by q.finished_at desc, q.seq desc limit :count)
  and r.claimed_at is not null

-- name: runtimes postgres
select h.job, h.max_runtime, h.policy, h.finished_at - h.claimed_at
from json_array_elements_text(:names::json) as l(name), lateral (
  select q.job, q.max_runtime, q.policy, q.finished_at, q.claimed_at from job_runs q
  where q.finished_at is not null and q.job = l.name and q.state = :state order by q.finished_at desc, q.seq desc limit :count) as h
where h.claimed_at is not null

-- The file -----------------------------------------------------------------------------------------------------------

-- name: file sqlite
select d.file, m.journal_mode, s.synchronous from pragma_database_list as d, pragma_journal_mode as m, pragma_synchronous as s where d.name = 'main'

-- name: damages sqlite
pragma quick_check(5)

-- The server ---------------------------------------------------------------------------------------------------------

-- name: store_time postgres
select (extract(epoch from clock_timestamp()) * 1000)::bigint

-- name: server postgres
select current_setting('server_version_num')::bigint, (select sum(d.numbackends) from pg_stat_database d)::bigint,
  current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint,
  current_setting('autovacuum') = 'on' and current_setting('track_counts') = 'on'

-- name: never_vacuumed postgres
select c.relname::text from pg_class c
where c.relkind = 'r' and c.relnamespace = (select o.relnamespace from pg_class o where o.oid = 'job_runs'::regclass)
  and array_to_string(c.reloptions, ' ') ~ 'autovacuum_enabled=(off|false|no|0)'
order by c.relname

-- Transactions that have been open for longer than this many milliseconds: no row that died since then can be vacuumed.
-- name: long_transactions postgres
select a.pid, coalesce(a.application_name, ''), coalesce(a.state, ''), (extract(epoch from clock_timestamp() - a.xact_start) * 1000)::bigint
from pg_stat_activity a
where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
  and a.xact_start < clock_timestamp() - :older::bigint * interval '1 millisecond'
order by a.xact_start limit :count
