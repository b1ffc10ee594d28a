-- The journal as a whole ------------------------------------------------------------------------------------------

-- The queue of an entry is the one that the run left next, or its current one.
-- fragment: queue_then
coalesce((select m.left_queue from job_journal m {using: job_journal_left}
    where m.run = e.run and m.rev > e.rev and m.left_queue is not null order by m.run, m.rev limit 1), r.queue)

-- name: tail sqlite
select e.entry, 0, r.id, e.rev, e.at, e.move, e.state, e.attempt, e.worker, e.detail, r.job, {queue_then}, b.state, b.at, e.left_queue
from job_journal e join job_runs r on r.seq {probe: e.run} left join job_journal b on b.run = e.run and b.rev = e.rev - 1
where e.entry > :entry and e.entry <= :last order by e.entry limit :count

-- On PostgreSQL a sequence skips late commits: new entries are those that the older snapshot could not see and the newer can.
-- The start is one condition: with two, an index scan starts at the first, however far behind.
-- name: snapshot postgres
select pg_current_snapshot()::text

-- name: tail postgres
select e.entry, e.xid::text::bigint, r.id, e.rev, e.at, e.move, e.state, e.attempt, e.worker, e.detail, r.job, {queue_then}, b.state, b.at, e.left_queue
from job_journal e join job_runs r on r.seq {probe: e.run} left join job_journal b on b.run {probe: e.run} and b.rev = e.rev - 1
where (e.xid, e.entry) > (greatest(:xid::text::xid8, pg_snapshot_xmin(:seen::pg_snapshot)),
    case when :xid::text::xid8 < pg_snapshot_xmin(:seen::pg_snapshot) then 0 else :entry end)
  and e.xid < pg_snapshot_xmax(:upto::pg_snapshot)
  and not pg_visible_in_snapshot(e.xid, :seen::pg_snapshot) and pg_visible_in_snapshot(e.xid, :upto::pg_snapshot)
order by e.xid, e.entry limit :count

-- Entries that an older snapshot could not see, as the topics of hints, with their counts: those of transactions that were
-- begun since, and of those that were open then. The end of a run matters to others only if its lane uses something.
-- name: news postgres
select case
    when e.state = 'queued' then 'queue:' || r.queue
    when e.state = 'scheduled' then 'sweep'
    when e.state = 'cancelling' then 'worker:' || e.worker
    when e.state in ({ended}) and l.requires <> '' then '*'
  end as topic, count(*)
from (
  (select run, state, worker from job_journal where xid >= pg_snapshot_xmax(:seen::pg_snapshot) order by xid, entry limit :count)
  union all
  (select run, state, worker from job_journal where xid = any (array(select pg_snapshot_xip(:seen::pg_snapshot))) limit :count)
) as e join job_runs r on r.seq {probe: e.run} join job_lanes l on l.id {probe: abs(r.lane)}
group by topic

-- Only a restored copy has entries of transactions that this server has not begun.
-- name: copied_upto postgres
select c.xid::text from (
  select xid from job_journal where xid >= pg_snapshot_xmax(pg_current_snapshot()) order by xid limit :count) as c
order by c.xid desc limit 1

-- name: settle_journal postgres
update job_journal set xid = '1' where xid >= pg_snapshot_xmax(pg_current_snapshot()) and xid <= :xid::text::xid8

-- name: last_entry sqlite
select seq from sqlite_sequence where name = 'job_journal'

-- Consumers of the journal keep their offsets here, and advance them in the batch that writes their results.
-- name: consumer
select cursor, rev from job_consumers where name = :name

-- name: begin_tail
insert into job_consumers (name, cursor, rev, at) values (:name, :cursor, 1, :at) on conflict (name) do nothing

-- name: consumers
select name, at from job_consumers

-- The lock is a separate statement: a statement that waits for it does not see what its holder committed.
-- name: lock_tail postgres
select 1 from job_consumers where name = :name for update

-- Like refuse_create: another process has advanced from the same offset, and has processed the entries.
-- name: refuse_advance
insert into schema_version (version, applied_at)
select 1, 0 where not exists (select 1 from job_consumers where name = :name and rev = :rev)

-- name: advance_tail
update job_consumers set cursor = :cursor, rev = rev + 1, at = {greatest}(at, :at) where name = :name
