-- Groups ---------------------------------------------------------------------------------------------------------

-- name: add_group
insert into job_groups (id, name, kind, on_failure, total, status, callback, created_at, retry_of)
values (:id, :name, :kind, :on_failure, :total, 'running', :callback, :now, :retry_of)

-- Both ends of a wait were created by this batch, and are known by their ids only.
-- name: add_group_waits
insert into job_waits (run, predecessor, rule)
select n.seq, p.seq, :rule from {rows: r: id text, predecessor text} cross join job_runs n cross join job_runs p
where n.id {probe: r.id} and p.id {probe: r.predecessor}

-- name: name_retries
update job_runs set retry_of = r.retry_of from {rows: r: id text, retry_of text} where job_runs.id {probe: r.id}

-- Fails the batch: the same request has created another group.
-- name: refuse_group
insert into schema_version (version, applied_at)
select 1, :now where exists (select 1 from job_keys where scope = :scope and key = :key and run <> :id)

-- Most runs have no group, and then nothing is looked up.
-- fragment: groups_of
select m.grouped from job_runs m where exists (select 1 from job_groups) and m.seq {in: ids}

-- The group's row is locked before any member is written, so that ends and cancels of members are serialized here.
-- name: lock_groups postgres
select seq from job_groups where seq {among: groups_of} order by seq for no key update

-- Counts the members that this batch has ended: those it was asked to, and those that failed with them. The last one ends the group.
-- name: tally after has_dependents
{cancelled_dependents}
update job_groups
set succeeded = job_groups.succeeded + e.succeeded, failed = job_groups.failed + e.failed, cancelled = job_groups.cancelled + e.cancelled,
  status = case
    when job_groups.succeeded + job_groups.failed + job_groups.cancelled + e.ended < total then 'running'
    when job_groups.succeeded + e.succeeded = total then 'completed'
    when job_groups.cancelled + e.cancelled = total then 'cancelled'
    else 'partial' end,
  finished_at = case
    when job_groups.succeeded + job_groups.failed + job_groups.cancelled + e.ended = total then {greatest}(:now, created_at) end
from (
  select grouped, count(*) as ended, sum(case when state = 'succeeded' then 1 else 0 end) as succeeded,
    sum(case when state in ('failed', 'quarantined') then 1 else 0 end) as failed,
    sum(case when state in ('cancelled', 'skipped') then 1 else 0 end) as cancelled
  from (
    select grouped, state from job_runs where exists (select 1 from job_groups) and seq {in: ids} and mark = :ended
    union all select grouped, state from job_runs where seq {among: runs_to_cancel} and mark = :mark) as m
  group by grouped) as e
where job_groups.seq {probe: e.grouped}

-- name: note_group
update job_groups set reason = :reason where seq = :seq and finished_at is null

-- name: group
select {group} from job_groups where id = :id

-- name: groups_newest
select {group} from job_groups where seq < :before order by seq desc limit :count

-- name: groups_in
select {group} from job_groups where status = :status and seq + 0 < :before order by seq + 0 desc limit :count

-- The ids of a group's members are in the order of the creating call.
-- name: members
select {run} from job_runs where grouped = :seq and id || '' > :after order by id || '' limit :count

-- name: list_members
select {run_within: limit} from job_runs where grouped = :seq and id || '' > :after order by id || '' limit :count

-- fragment: chosen_groups
select grouped from chosen where grouped is not null

-- fragment: chosen_places sqlite
chosen c left join places p on p.seq = c.seq

-- A full join is never made by reading all places for each run, which PostgreSQL prefers where it expects few.
-- fragment: chosen_places postgres
chosen c full join places p on p.seq = c.seq where coalesce(c.id, '') <> ''

-- Where runs come from: the keys of their schedules, the ids of their groups, and their places in them, in the order of the creating call. The
-- members of a group are numbered once, however many of them are asked for.
-- name: origins
with chosen as materialized (select id, seq, schedule, grouped from job_runs where id {in_texts: ids}),
places as materialized (
  select m.seq, row_number() over (partition by m.grouped order by m.seq) - 1 as place
  from job_runs m where m.grouped {among: chosen_groups})
select c.id, (select s.key from job_schedules s where s.id = c.schedule), (select g.id from job_groups g where g.seq = c.grouped), p.place
from {chosen_places}

-- Those that can still be cancelled, the last ones first: runs that are released meanwhile have been cancelled already.
-- name: members_to_cancel
select seq from job_runs where grouped = :seq and finished_at is null and state <> 'cancelling' order by position desc, seq desc

-- fragment: its_members
select m.seq from job_runs m where m.grouped = :seq

-- name: group_waits
select (select n.id from job_runs n where n.seq = w.run), (select p.id from job_runs p where p.seq = w.predecessor)
from job_waits w where w.run {among: its_members}

-- name: callback_group
select {group} from job_groups where callback = :run

-- fragment: its_group
select g.seq from job_groups g where g.callback = :id

-- The results that a run may read: those of its predecessors, and for a callback those of the group's members. A page ends where its
-- outputs are too large together, and has at least one.
-- name: results
with page as materialized (
  select seq, id, size from (
    select p.seq, p.id, coalesce(octet_length(p.output), 0) as size from job_waits w cross join job_runs p where w.run = :seq and p.seq {probe: w.predecessor}
    union all
    select m.seq, m.id, coalesce(octet_length(m.output), 0) as size from job_runs m where m.grouped {among: its_group}) as r
  where id || '' > :after order by id || '' limit :count),
weighed as materialized (select seq, id, sum(size) over (order by id) - size as before from page)
select j.id, j.job, j.state, j.output from weighed cross join job_runs j
where weighed.before < :limit and j.seq {probe: weighed.seq} order by weighed.id

-- A group is removed with the last of its members.
-- name: prune_groups
delete from job_groups
where seq {among: groups_of} and finished_at is not null
  and (select m.seq from job_runs m where m.grouped = job_groups.seq and not m.seq {in: ids} limit 1) is null
