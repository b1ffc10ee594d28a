-- Controls: pauses, queues, resources ----------------------------------------------------------------------------

-- fragment: controls
(select coalesce(max(rev), 0) from job_controls)

-- The revision, and how often lanes were removed.
-- name: controls_rev
select {controls}, (select coalesce(max(removed), 0) from job_controls)

-- name: raise_controls
insert into job_controls (id, rev) values (1, 1) on conflict (id) do update set rev = job_controls.rev + 1

-- name: raise_removed
insert into job_controls (id, rev, removed) values (1, 1, 1)
on conflict (id) do update set rev = job_controls.rev + 1, removed = job_controls.removed + 1

-- name: all_pauses
select scope, name, at, reason, actor from job_pauses order by scope, name

-- name: all_queues
select name, aging from job_queues order by name

-- name: all_resources
select name, capacity, rates, max_wait, created_at, updated_at from job_resources order by name

-- name: add_pause
insert into job_pauses (scope, name, at, reason, actor)
select :scope, :name, :now, :reason, :actor where (select count(*) from job_pauses) < :limit
on conflict (scope, name) do nothing
returning name

-- name: drop_pause
delete from job_pauses where scope = :scope and name = :name returning name

-- name: set_queue
insert into job_queues (name, aging) select :name, :aging
where (select count(*) from job_queues) < :limit or exists (select 1 from job_queues where name = :name)
on conflict (name) do update set aging = excluded.aging
returning name

-- name: drop_queue
delete from job_queues where name = :name returning name

-- name: set_resource
insert into job_resources (name, capacity, rates, max_wait, owner, created_at, updated_at)
select :name, cast(:capacity as {int}), :rates, :max_wait, cast(:owner as text), :now, :now
where exists (select 1 from job_resources where name = :name)
  or (select count(*) from job_resources) < :limit
    and (cast(:owner as text) is null or (select count(*) from job_resources where owner = :owner) < :share)
on conflict (name) do update
  set capacity = excluded.capacity, rates = excluded.rates, max_wait = excluded.max_wait, updated_at = excluded.updated_at, named = 0
returning name

-- A resource that a job names and that was never set has a capacity of one, which is safe.
-- name: add_resources
insert into job_resources (name, capacity, rates, max_wait, named, owner, created_at, updated_at)
select r.name, 1, '[]', :max_wait, 1, cast(:owner as text), :now, :now from {rows: r: name text}
where (select count(*) from job_resources) + {new_resources} <= :limit
  and (cast(:owner as text) is null or (select count(*) from job_resources where owner = :owner) + {new_resources} <= :share)
on conflict (name) do nothing

-- fragment: new_resources
(select count(*) from {rows: r: name text} where not exists (select 1 from job_resources known where known.name {probe: r.name}))

-- Those that still have their initial settings: they were never set.
-- name: named_resources
select name from job_resources where named = 1 and created_at < :before

-- Those of these resources that runs or direct calls occupy. Queued and parked runs are in a lane that names theirs.
-- fragment: resources_in_use
select g.resource from job_limiters g where g.resource {in_texts: names} and (
  exists (select 1 from job_holds h where h.key {probe: g.key}) or exists (select 1 from job_slots s where s.key {probe: g.key}))

-- name: resources_in_use
{resources_in_use}

-- Those that no lane names, as of the last lane that was read.
-- name: drop_resources
delete from job_resources where name {in_texts: names} and {controls} = :controls and (select coalesce(max(id), 0) from job_lanes) = :last
  and name not in ({resources_in_use})
returning name

-- Usage --------------------------------------------------------------------------------------------------------------

-- Runs that are live under the token of their hold, and every direct call, also a waiting one.
-- fragment: counting
(select cast(coalesce(sum(h.weight), 0) as {int}) from job_holds h join job_runs o on o.seq {probe: h.run}
  where h.key = g.key and o.token = h.token and o.state in ({live}))
+ (select cast(coalesce(sum(s.weight), 0) as {int}) from job_slots s where s.key = g.key)

-- name: usage
select g.key, {counting} from {rows: g: key text}

-- name: rates_of
select key, n, tat from job_rates where key {in_texts: names}

-- name: holders
select o.id, o.job, o.worker, h.weight from job_holds h join job_runs o on o.seq {probe: h.run}
where h.key = :key and o.token = h.token and o.state in ({live}) order by h.run + 0 limit :count

-- name: slots_at
select {slot} from job_slots where key = :key order by seq limit :count

-- name: held_under
select h.key, cast(sum(h.weight) as {int}), count(*) from job_holds h join job_runs o on o.seq {probe: h.run}
where o.token = h.token and o.state in ({live}) group by h.key order by h.key

-- Claims within limits --------------------------------------------------------------------------------------------

-- fragment: needs
{rows: n: seq int, key text, weight int, upto int, capacity int}

-- fragment: rates
{rows: w: key text, n int, step int, room int}

-- fragment: parking
{rows: p: seq int, lane int, key text, capacity int}

-- The rows of the limiters that are counted next, created if missing, locked in the order of their keys. A conflict
-- locks the row even if nothing is written.
-- name: hold_limiters
insert into job_limiters (key, resource, used_at)
select g.key, g.resource, :now from {rows: g: key text, resource text} where true order by g.key
on conflict (key) do update set used_at = :now where job_limiters.used_at < :now - 60000

-- Each limiter once: its usage, now that it is locked.
-- fragment: counted
with g as (select distinct n.key from {needs}),
occupied as materialized (select g.key, {counting} as weight from g)

-- When a bucket is empty, as `Limiter` reads it: one that is more than full starts empty.
-- fragment: filled
coalesce((select t.tat from job_rates t where t.key = w.key and t.n = w.n and t.tat > cast(:now as {int}) * 1000 and t.tat <= cast(:now as {int}) * 1000 + w.room + 60000000), cast(:now as {int}) * 1000)

-- fragment: fitting
select j.seq from {seen} and {may_take: :}
  and j.seq not in (
    select n.seq from {needs} join occupied f on f.key = n.key
    where f.weight + n.upto > n.capacity)
  and j.seq not in (
    select n.seq from {needs}
    join {rates} on w.key = n.key
    where {filled} + n.upto * w.step > cast(:now as {int}) * 1000 + w.room)
order by j.priority_key, j.position, j.seq {skip_locked: j}

-- name: claim_within
{counted}
update job_runs set {grant: :} where seq {among: fitting}

-- name: add_holds
insert into job_holds (key, run, token, weight)
select n.key, n.seq, :token, n.weight
from {needs} join job_runs j on j.seq {probe: n.seq} and j.mark = :mark
where true
on conflict (key, run) do update set token = excluded.token, weight = excluded.weight

-- name: add_rates
insert into job_rates (key, n, tat)
select w.key, w.n, {filled} + w.step * p.weight
from {rates} join (
  select n.key, cast(sum(n.weight) as {int}) as weight from {needs}
  join job_runs j on j.seq {probe: n.seq} and j.mark = :mark group by n.key) as p on p.key = w.key
where true
on conflict (key, n) do update set tat = excluded.tat

-- Their lane becomes negative, so that no claim reads them.
-- name: park
with g as (select distinct p.key from {parking}),
occupied as materialized (select g.key, {counting} as weight from g),
kept_out as materialized (
  select j.seq, p.key from {parking} join job_runs j on j.seq {probe: p.seq}
  where j.lane = p.lane and j.state || '' {from: claim}
    and (p.capacity is null or (select f.weight from occupied f where f.key = p.key) >= p.capacity)
  order by j.seq + 0 {skip_locked: j})
update job_runs set lane = -job_runs.lane, parked = kept_out.key from kept_out where job_runs.seq {probe: kept_out.seq}

-- name: wake_limiters
insert into job_limiters (key, resource, wake_at, used_at)
select g.key, g.resource, g.wake_at, :now from {rows: g: key text, resource text, wake_at int} where true
on conflict (key) do update set wake_at = excluded.wake_at
  where job_limiters.wake_at is null or job_limiters.wake_at > excluded.wake_at

-- Releasing ----------------------------------------------------------------------------------------------------------

-- fragment: keys_held
select key from job_holds where run {in: ids}

-- name: lock_limiters_of postgres
select key from job_limiters where key {among: keys_held} order by key for update

-- fragment: release_holds
select h.key from job_holds h join job_runs o on o.seq {probe: h.run} where h.run {in: ids} and (o.token is distinct from h.token or o.state not in ({live}))

-- fragment: limiters_named
select g.key from {rows: g: key text}

-- The lanes that have parked runs for these keys: looked up one by one, however many are parked.
-- fragment: lanes_of
lanes(key, lane) as (
  select f.key, (select min(j.lane) from job_runs j where j.parked = f.key) from freed f
  union all
  select l.key, (select min(j.lane) from job_runs j where j.parked = l.key and j.lane > l.lane) from lanes l where l.lane is not null)

-- fragment: first_parked_sqlite
select q.seq from lanes l cross join job_runs q where l.lane is not null and q.seq in (
  select j.seq from job_runs j where j.parked = l.key and j.lane = l.lane order by j.priority_key, j.position, j.seq limit :count)

-- fragment: first_parked_postgres
select q.seq from lanes l, lateral (
  select j.seq from job_runs j where l.lane is not null and j.parked = l.key and j.lane = l.lane
  order by j.priority_key, j.position, j.seq limit :count for no key update skip locked) as q

-- name: unpark sqlite
with recursive freed(key) as (select distinct key from ({release_holds}) as k),
{lanes_of}
update job_runs set parked = null, lane = -lane where seq in ({first_parked_sqlite})
returning queue

-- name: unpark postgres
with recursive freed(key) as (select distinct key from ({release_holds}) as k),
{lanes_of}
update job_runs set parked = null, lane = -lane where seq = any (array({first_parked_postgres}))
returning queue

-- name: unpark_keys sqlite
with recursive freed(key) as ({limiters_named}),
{lanes_of}
update job_runs set parked = null, lane = -lane where seq in ({first_parked_sqlite})
returning queue

-- name: unpark_keys postgres
with recursive freed(key) as ({limiters_named}),
{lanes_of}
update job_runs set parked = null, lane = -lane where seq = any (array({first_parked_postgres}))
returning queue

-- name: free
delete from job_holds where run {in: ids}
  and not exists (select 1 from job_runs o where o.seq {probe: job_holds.run} and o.token = job_holds.token and o.state in ({live}))
returning key

-- Leftovers of time and faults ---------------------------------------------------------------------------------------

-- name: limiters_due
select key, resource from job_limiters where wake_at <= :now order by wake_at limit :count

-- name: lock_limiters postgres
select key from job_limiters where key {in_texts: names} order by key for update

-- name: open_limiters
update job_limiters set wake_at = null where key {in_texts: names} and coalesce(wake_at, :now + 1) <= :now

-- name: parked_keys
with recursive found(key, n) as (
  select (select parked from job_runs where parked is not null and parked > :after order by parked limit 1), 1
  union all
  select (select parked from job_runs where parked is not null and parked > f.key order by parked limit 1), f.n + 1 from found f where f.key is not null and f.n < :count)
select key from found where key is not null

-- name: stale_holds
select h.run from job_holds h where h.run > :after
  and not exists (select 1 from job_runs o where o.seq {probe: h.run} and o.token = h.token and o.state in ({live}))
order by h.run limit :count

-- Limiters of keys that were not used for a while, and their rates.
-- name: idle_limiters
select key from job_limiters g where used_at < :before and wake_at is null
  and not exists (select 1 from job_holds h where h.key {probe: g.key})
  and not exists (select 1 from job_runs j where j.parked {probe: g.key})
  and not exists (select 1 from job_slots s where s.key {probe: g.key})
  and not exists (select 1 from job_rates t where t.key {probe: g.key} and t.tat > cast(:now as {int}) * 1000)
limit :count

-- name: drop_idle_rates
delete from job_rates where key {in_texts: names} and tat <= cast(:now as {int}) * 1000

-- name: drop_idle_limiters
delete from job_limiters where key {in_texts: names} and used_at < :before and wake_at is null

-- name: prune_holds
delete from job_holds where run {in: ids}

-- Direct calls --------------------------------------------------------------------------------------------------------

-- name: add_slot
insert into job_slots (id, key, token, weight, state, actor, lease, lease_until, created_at)
select :id, :key, :token, :weight, 'waiting', :actor, :lease, cast(:now as {int}) + cast(:lease as {int}), :now where (select count(*) from job_slots) < :limit
on conflict (id) do nothing

-- The next in the queue gets the slot when it fits beside the live runs and the calls before it.
-- name: grant_slots
update job_slots set state = 'held', held_at = :now
where key = :key and state = 'waiting' and {controls} = :controls
  and (cast(:capacity as {int}) is null or :capacity >=
    (select cast(coalesce(sum(s.weight), 0) as {int}) from job_slots s where s.key = :key and s.seq <= job_slots.seq)
    + (select cast(coalesce(sum(h.weight), 0) as {int}) from job_holds h join job_runs o on o.seq {probe: h.run}
      where h.key = :key and o.token = h.token and o.state in ({live})))
returning id

-- name: find_slot
select {slot}{and_server_time} from job_slots where id = :id

-- name: slots_after
select {slot} from job_slots where seq > :after order by seq limit :count

-- name: renew_slot
update job_slots set lease = {greatest}(lease, :lease), lease_until = {extended} where id = :id and token = :token returning id

-- name: release_slot
delete from job_slots where id = :id and token = :token returning key

-- name: slots_overdue
select {slot} from job_slots where seq > :after and (lease_until <= :now or lease_until > :now + lease) order by seq limit :count

-- fragment: slots_listed
select r.seq from {rows: r: seq int, lease_until int}

-- name: lapse_slots
delete from job_slots where seq {among: slots_listed} and 0 < (
  select count(*) from {rows: r: seq int, lease_until int} where r.seq = job_slots.seq and r.lease_until = job_slots.lease_until)
returning key

