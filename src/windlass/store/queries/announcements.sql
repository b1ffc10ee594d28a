-- Announcements --------------------------------------------------------------------------------------------------

-- name: announcer
select cursor from job_announcers where queue = :queue

-- Only from the cursor that was read: another process may have read further.
-- name: advance_announcer
insert into job_announcers (queue, cursor) values (:queue, :cursor)
on conflict (queue) do update set cursor = excluded.cursor where job_announcers.cursor = :seen

-- Runs that were queued since they were announced are to be announced again.
-- name: add_unannounced
insert into job_announcements (run, queue, rev, at)
select j.seq, j.queue, j.rev, 0 from job_runs j where j.seq {in: ids} and j.queue || '' = :queue and j.state || '' = 'queued'
order by j.seq + 0
on conflict (run) do update set queue = excluded.queue, rev = excluded.rev, at = 0 where job_announcements.rev < excluded.rev

-- Those that were announced before a time, not announced ones first; and those that were announced after all others can have been, before the
-- clock was set back. The last column: whether the run is still queued there.
-- name: to_announce
select a.run, a.rev, (select 1 from job_runs j where j.seq = a.run and j.queue || '' = a.queue and j.state || '' = 'queued')
from (
  select * from (select run, queue, rev, at from job_announcements where queue = :queue and at <= :before order by at, run + 0 limit :count) as b
  union all
  select * from (select run, queue, rev, at from job_announcements where queue = :queue and at > :latest order by at, run + 0 limit :count) as l
) as a order by a.at, a.run limit :count

-- Rows of runs that are not queued any more. One that was queued again meanwhile has another revision.
-- name: drop_announcements
delete from job_announcements
where run {in: ids} and rev = (select r.rev from {rows: r: run int, rev int} where r.run = job_announcements.run)

-- Each run is marked by one caller: the row of the first one is locked, and then the mark is too young for the others.
-- name: announce
insert into job_announcements (run, queue, rev, at)
select j.seq, j.queue, j.rev, :now from {rows: r: run int, rev int} join job_runs j on j.seq {probe: r.run}
where j.rev = r.rev and j.state || '' = 'queued'
order by j.seq + 0
on conflict (run) do update set queue = excluded.queue, rev = excluded.rev, at = excluded.at
  where job_announcements.rev < excluded.rev or job_announcements.at <= :before or job_announcements.at > :latest
returning run

-- name: prune_announcements
delete from job_announcements where run {in: ids}
