-- Moves within a queue -------------------------------------------------------------------------------------------

-- The queued runs of these lanes from a position on, or before it, the nearest first; without the one that is to be moved.
-- name: places_from sqlite
select r.priority_key, r.position, r.seq from json_each(:lanes) as l cross join job_runs as r
where r.seq in (
  select q.seq from job_runs q
  where q.state = 'queued' and q.lane = l.value and (q.priority_key, q.position, q.seq) >= (:priority_key, :position, :seq) and q.seq <> :moved
  order by q.priority_key, q.position, q.seq limit :count)
order by r.priority_key, r.position, r.seq limit :count

-- name: places_from postgres
select h.priority_key, h.position, h.seq
from json_array_elements_text(:lanes::json) as l(lane), lateral (
  select q.priority_key, q.position, q.seq from job_runs q
  where q.state = 'queued' and q.lane = l.lane::bigint and (q.priority_key, q.position, q.seq) >= (:priority_key, :position, :seq) and q.seq <> :moved
  order by q.priority_key, q.position, q.seq limit :count) as h
order by h.priority_key, h.position, h.seq limit :count

-- name: places_before sqlite
select r.priority_key, r.position, r.seq from json_each(:lanes) as l cross join job_runs as r
where r.seq in (
  select q.seq from job_runs q
  where q.state = 'queued' and q.lane = l.value and (q.priority_key, q.position, q.seq) < (:priority_key, :position, :seq) and q.seq <> :moved
  order by q.priority_key desc, q.position desc, q.seq desc limit :count)
order by r.priority_key desc, r.position desc, r.seq desc limit :count

-- name: places_before postgres
select h.priority_key, h.position, h.seq
from json_array_elements_text(:lanes::json) as l(lane), lateral (
  select q.priority_key, q.position, q.seq from job_runs q
  where q.state = 'queued' and q.lane = l.lane::bigint and (q.priority_key, q.position, q.seq) < (:priority_key, :position, :seq) and q.seq <> :moved
  order by q.priority_key desc, q.position desc, q.seq desc limit :count) as h
order by h.priority_key desc, h.position desc, h.seq desc limit :count

-- name: place_at sqlite
select r.priority_key, r.position, r.seq from json_each(:lanes) as l cross join job_runs as r
where r.seq in (
  select q.seq from job_runs q where q.state = 'queued' and q.lane = l.value and q.seq <> :moved
  order by q.priority_key, q.position, q.seq limit :count + 1)
order by r.priority_key, r.position, r.seq limit 1 offset :count

-- name: place_at postgres
select h.priority_key, h.position, h.seq
from json_array_elements_text(:lanes::json) as l(lane), lateral (
  select q.priority_key, q.position, q.seq from job_runs q where q.state = 'queued' and q.lane = l.lane::bigint and q.seq <> :moved
  order by q.priority_key, q.position, q.seq limit :count + 1) as h
order by h.priority_key, h.position, h.seq limit 1 offset :count

-- How many queued runs of these lanes have a priority key and stand before a position, counted no further than a limit.
-- name: count_before sqlite
select count(*) from (
  select q.seq from json_each(:lanes) as l cross join job_runs as q
  where q.state = 'queued' and q.lane = l.value and q.priority_key = :priority_key and (q.position, q.seq) < (:position, :seq) limit :count) as h

-- name: count_before postgres
select count(*) from (
  select h.seq from json_array_elements_text(:lanes::json) as l(lane), lateral (
    select q.seq from job_runs q
    where q.state = 'queued' and q.lane = l.lane::bigint and q.priority_key = :priority_key and (q.position, q.seq) < (:position, :seq)
    order by q.position, q.seq limit :count) as h
  limit :count) as b

-- Only if neighbours are moved to make room: a move alone locks nothing but its run.
-- name: lock_moved postgres
select seq from job_runs where seq {in: ids} order by seq for no key update

-- name: move
update job_runs set rev = :rev, mark = :mark, priority_key = :priority_key, position = :position, aging_priority = cast(:aging_priority as {int})
where seq = :seq and rev = :rev - 1 and state || '' {from: move}
returning seq

-- Neighbours keep their order, so their moves are not journaled.
-- name: respace
update job_runs set position = r.position, mark = :mark
from {rows: r: seq int, priority_key int, seen int, position int}
where job_runs.seq {probe: r.seq} and job_runs.priority_key = r.priority_key and job_runs.position = r.seen and state || '' {from: claim}

-- Fails the batch if the run has changed since it was read, or a neighbour still waits but has moved.
-- name: refuse_move
insert into schema_version (version, applied_at)
select 1, :now
where not exists (select 1 from job_runs where seq = :seq and mark = :mark)
  or exists (select 1 from job_runs where seq {in: ids} and state || '' {from: claim} and mark is distinct from :mark)
