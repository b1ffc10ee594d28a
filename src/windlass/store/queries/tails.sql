-- The journal as a whole ------------------------------------------------------------------------------------------

-- name: tail sqlite
select e.entry, 0, r.id, e.rev, e.at, e.move, e.state, e.attempt, e.worker, e.detail, r.job, r.queue,
  (select b.state from job_journal b where b.run = e.run and b.rev = e.rev - 1)
from job_journal e join job_runs r on r.seq {probe: e.run} where e.entry > :entry order by e.entry limit :count

-- On PostgreSQL a sequence skips what commits late: what is new is what the older snapshot could not see and the newer can.
-- name: snapshot postgres
select pg_current_snapshot()::text

-- name: tail postgres
select e.entry, e.xid::text::bigint, r.id, e.rev, e.at, e.move, e.state, e.attempt, e.worker, e.detail, r.job, r.queue,
  (select b.state from job_journal b where b.run {probe: e.run} and b.rev {probe: e.rev - 1})
from job_journal e join job_runs r on r.seq {probe: e.run}
where e.xid >= pg_snapshot_xmin(:seen::pg_snapshot) and e.xid < pg_snapshot_xmax(:upto::pg_snapshot)
  and not pg_visible_in_snapshot(e.xid, :seen::pg_snapshot) and pg_visible_in_snapshot(e.xid, :upto::pg_snapshot)
  and (e.xid, e.entry) > (:xid::text::xid8, :entry)
order by e.xid, e.entry limit :count

-- name: last_entry
select max(entry) from job_journal

-- Those who follow it keep their place here, and move it together with what they make of the entries.
-- name: follower
select cursor, rev from job_followers where name = :name

-- name: begin_tail
insert into job_followers (name, cursor, rev) values (:name, :cursor, 1) on conflict (name) do nothing

-- name: advance_tail
update job_followers set cursor = :cursor, rev = rev + 1 where name = :name and rev = :rev

-- As refuse_create: another process has moved on from the same place, and has made of the entries what there is to make.
-- name: refuse_advance
insert into schema_version (version, applied_at)
select 1, 0 where not exists (select 1 from job_followers where name = :name and rev = :rev + 1)
