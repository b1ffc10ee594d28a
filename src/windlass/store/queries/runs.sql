-- All statements of windlass. `{from: ...}` is read from the machine's table; `{rows: r: ...}` is a set passed as one
-- JSON text in `:r`; `seq {in: ids}` and `id {in_texts: ids}` test for membership in a set of integers or of texts, `{among: part}`
-- in what a part selects. In a part that is named with a word, such as `{grant: g.}`, the word stands for every `@`. The lists of columns
-- in `columns.py` are parts too: `{counts}`, `{own: r}` with an alias, `*counts` in a set, and `{each: counts: sum(@)}` or
-- `{all: unfinished: @ = 0}`, in which `@` stands for each column. A statement
-- marked with a database exists only there; one that comes "after" another need not be run if that one found nothing. After a
-- set-based transition, `mark` shows which rows the batch really changed.
--
-- PostgreSQL keeps the plan of a statement's first execution, which may have been on an empty table, for as long as the connection
-- lives. So no statement leaves it a choice that depends on sizes: `{probe: r.seq}` is an equality that can only be looked up, and
-- `|| ''`, `+ 0` and a test that is always true rule out an index that would be walked from end to end.

-- Definitions and lanes ------------------------------------------------------------------------------------------

-- The definition of another owner does not change, unless the caller has admin; an undefined job belongs to its first definer.
-- name: define
insert into jobs (name, handler, payload, options, schema, description, owner, rev, created_at, updated_at)
values (:name, :handler, :payload, :options, :schema, :description, :owner, 1, :now, :now)
on conflict (name) do update
  set handler = excluded.handler, payload = excluded.payload, options = excluded.options, schema = excluded.schema,
    description = excluded.description, rev = jobs.rev + 1, updated_at = :now, owner = case when :takes = 1 or jobs.handler is null then excluded.owner else jobs.owner end
  where (jobs.handler is distinct from excluded.handler or jobs.payload <> excluded.payload or jobs.options <> excluded.options
      or jobs.schema is distinct from excluded.schema or jobs.description is distinct from excluded.description)
    and (:trusted = 1 or jobs.handler is null or jobs.owner = excluded.owner)

-- The schemas of code with the same definition, also if the definition has another owner.
-- name: tell_schema
insert into job_schemas (job, schema, document, told_at)
select name, cast(:schema as text), cast(:document as text), :now from jobs
where name = :name and handler = :handler and payload = :payload and options = :options
on conflict (job, schema) do nothing

-- All but the newest, and the one of the last definer.
-- name: drop_schemas
delete from job_schemas where job = :name and schema in (
  select s.schema from job_schemas s join jobs j on j.name = s.job
  where s.job = :name and j.schema is distinct from s.schema order by s.told_at desc, s.schema limit 1000 offset :limit)

-- name: schema_documents
select s.schema, s.document from {rows: r: job text, schema text} join job_schemas s on s.job {probe: r.job} and s.schema {probe: r.schema}

-- fragment: new_placeholders
(select count(*) from {rows: r: name text} where not exists (select 1 from jobs known where known.name {probe: r.name}))

-- All or none of them, within the limits: in total, and for one principal without admin.
-- name: define_placeholders
insert into jobs (name, handler, payload, options, owner, rev, created_at, updated_at)
select r.name, null, '{}', '{}', cast(:owner as text), 1, :now, :now from {rows: r: name text}
where (select count(*) from jobs where handler is null) + {new_placeholders} <= :limit
  and (cast(:owner as text) is null or (select count(*) from jobs where handler is null and owner = :owner) + {new_placeholders} <= :share)
on conflict (name) do nothing

-- name: jobs_named
select {job} from jobs where name {in_texts: names} order by name

-- name: jobs_all
select {job} from jobs where name > :after order by name limit :count

-- Lanes are committed in the order of their ids, so that reading those after the last known one misses none.
-- name: lock_lanes postgres
lock table job_lanes in share row exclusive mode

-- fragment: new_lanes
(select count(*) from {rows: r: queue text, job text, requires text} where not exists (
  select 1 from job_lanes known where known.queue {probe: r.queue} and known.job {probe: r.job} and known.requires {probe: r.requires}))

-- All or none of them, within the limits. The resources that they name are known as of a revision.
-- name: add_lanes
insert into job_lanes (queue, job, requires, used_at, owner)
select r.queue, r.job, r.requires, :now, cast(:owner as text) from {rows: r: queue text, job text, requires text}
where {controls} = :controls and (select count(*) from job_lanes) + {new_lanes} <= :limit
  and (cast(:owner as text) is null or (select count(*) from job_lanes where owner = :owner) + {new_lanes} <= :share)
on conflict (queue, job, requires) do nothing

-- name: lanes_after
select id, queue, job, requires, used_at, owner from job_lanes where id > :after order by id

-- How many of the records that creations make on demand exist: in total, and made by one principal without admin.
-- name: room
select (select count(*) from job_lanes), (select count(*) from job_lanes where owner = :owner),
  (select count(*) from job_resources), (select count(*) from job_resources where owner = :owner),
  (select count(*) from jobs where handler is null), (select count(*) from jobs where handler is null and owner = :owner)

-- Removing unused records --------------------------------------------------------------------------------------------

-- name: unused_lanes
select id, used_at from job_lanes where used_at < :before union all select id, used_at from job_lanes where used_at is null

-- name: use_lanes
update job_lanes set used_at = :now where id {in: ids} and coalesce(used_at, 0) < :before

-- name: lanes_there
select id from job_lanes where id {in: ids}

-- From here on a lane is used only by processes that record the use first: they learn of it with the revision that this batch raises.
-- name: close_lanes
update job_lanes set used_at = 0 where id {in: ids} and coalesce(used_at, 0) < :before returning id

-- Transactions that are creating runs: every creation may refuse itself, and keeps that lock until its end. One that
-- takes it later compares the revision later.
-- name: creating postgres
select virtualtransaction from pg_locks
where locktype = 'relation' and relation = 'schema_version'::regclass and mode = 'RowExclusiveLock' and granted
  and database = (select d.oid from pg_database d where d.datname = current_database())

-- Lanes that have queued runs, parked or not, or live ones: in one statement, so that no run is missed on its way from one to the other.
-- fragment: lanes_in_use
select l.id from job_lanes l where l.id {in: ids} and (
  (select 1 from job_runs q where q.state = 'queued' and q.lane = l.id limit 1) is not null
  or (select 1 from job_runs p where p.state = 'queued' and p.lane = -l.id limit 1) is not null)
union all
select abs(h.lane) from job_runs h where h.lease_check_at is not null and abs(h.lane) {in: ids}

-- name: lanes_in_use
{lanes_in_use}

-- name: lanes_of_waiting
select seq, abs(lane) from job_runs where state = 'waiting' and seq > :seq order by seq limit :count

-- name: lanes_of_scheduled
select due_at, seq, abs(lane) from job_runs where state = 'scheduled' and (due_at, seq) > (:at, :seq) order by due_at, seq limit :count

-- name: drop_lanes
delete from job_lanes where id {in: ids} and used_at = 0 and id not in ({lanes_in_use}) returning id

-- name: unused_placeholders
select j.name from jobs j where j.handler is null and j.created_at < :before
  and (select 1 from job_runs r where r.job = j.name limit 1) is null
order by j.created_at

-- name: drop_placeholders
delete from jobs where name {in_texts: names} and handler is null
  and (select 1 from job_runs r where r.job = jobs.name limit 1) is null
returning name

-- Those of these workers whose one slot is taken.
-- name: busy
select worker from job_runs where worker {in_texts: names} and slot = 0

-- Creation -------------------------------------------------------------------------------------------------------

-- name: take_keys
insert into job_keys ({key})
select {key: r}
from {rows: r: *key}
where true
on conflict (scope, key) do nothing

-- name: lock_keys postgres
select k.scope from {rows: r: scope text, key text} join job_keys k on k.scope {probe: r.scope} and k.key {probe: r.key}
order by r.scope, r.key for update of k

-- A key is free again when its time is over, or when the run that held it has ended. This must be a separate statement,
-- after the lock: the statement that waits for the lock does not see what the holder committed.
-- name: retake_keys
update job_keys set {each: holder: @ = r.@}
from {rows: r: *key}
where job_keys.scope {probe: r.scope} and job_keys.key {probe: r.key} and job_keys.run <> r.run
  and (job_keys.until <= :now
    or job_keys.unfinished = 1 and (select h.finished_at is null from job_runs h where h.id = job_keys.run) is not true)

-- name: lock_predecessors postgres
select seq from job_runs where seq {in: predecessors} order by seq for share

-- In a caller's transaction, which may be open for long: it prevents only a removal, like the foreign key of a wait.
-- name: refer_predecessors postgres
select seq from job_runs where seq {in: predecessors} order by seq for key share

-- Fails the batch, because version 1 exists and inserting it again is a conflict: if the definition that a
-- run was created from is no longer current, or if the controls have changed.
-- fragment: refused_if_outdated
insert into schema_version (version, applied_at)
select 1, :now
where (select count(*) from {rows: d: id int, rev int} join jobs on jobs.id = d.id and jobs.rev = d.rev) <> :definitions
  or {controls} <> coalesce(cast(:controls as {int}), {controls})

-- name: refuse_create sqlite
{refused_if_outdated}

-- The same for runs with keys or predecessors: if a predecessor is gone, if a key was pruned while its lock was awaited,
-- or if it is held by a run with different content.
-- name: refuse_taken
insert into schema_version (version, applied_at)
select 1, :now
where (select count(*) from job_runs where seq {in: predecessors}) <> :expected
  or (select count(h.run) from {rows: k: scope text, key text} join job_keys h on h.scope {probe: k.scope} and h.key {probe: k.key}) <> :keys
  or exists (
    select 1 from {rows: k: *asked_key} join job_keys h on h.scope {probe: k.scope} and h.key {probe: k.key}
    where k.compare = 1 and h.run <> k.run and h.hash is distinct from k.hash)

-- fragment: new_runs
insert into job_runs ({own}, {common}, rev, created_at, grouped)
select {own: r}, {params: common}, 1, :now, (select g.seq from job_groups g where g.id = :group)
from {rows: r: *new}
where r.key is null or r.id = (select k.run from job_keys k where k.scope = r.scope and k.key = r.key)

-- Of runs with none of the columns that most runs leave empty: SQLite is slow to read a column from JSON, also one that is not there.
-- fragment: new_plain_runs
insert into job_runs ({plain}, {common}, rev, created_at, grouped)
select {plain: r}, {params: common}, 1, :now, (select g.seq from job_groups g where g.id = :group)
from {rows: r: *plain}

-- PostgreSQL refuses, inserts and journals in one statement: no run is looked up again, and a creation of nothing else needs no other.
-- fragment: journal_of_created
insert into job_journal (run, rev, at, move, state, attempt)
select seq, rev, :now, 'create', state, attempt from created order by seq

-- name: create sqlite
{new_runs}

-- name: create postgres
with refused as ({refused_if_outdated}), created as ({new_runs} returning seq, rev, state, attempt)
{journal_of_created}

-- name: create_plain sqlite
{new_plain_runs}

-- name: create_plain postgres
with refused as ({refused_if_outdated}), created as ({new_plain_runs} returning seq, rev, state, attempt)
{journal_of_created}

-- name: add_waits
insert into job_waits (run, predecessor, rule)
select n.seq, r.predecessor, r.rule from {rows: r: id text, predecessor int, rule text} join job_runs n on n.id {probe: r.id}
where true
on conflict (run, predecessor) do nothing

-- name: add_checks
insert into job_checks (run) select seq from job_runs where id {in_texts: ids} order by seq + 0

-- The rows that the previous statement has inserted. SQLite numbers the rows of one statement without a gap.
-- name: journal_created sqlite
insert into job_journal (run, rev, at, move, state, attempt)
select seq, rev, :now, 'create', state, attempt from job_runs where changes() > 0 and seq > last_insert_rowid() - changes() order by seq limit changes()

-- name: winners
select k.scope, k.key, k.run, k.hash, h.seq,
  coalesce(k.until, :now + 1) > :now and (k.unfinished = 0 or h.seq is not null and h.finished_at is null)
from {rows: r: scope text, key text} join job_keys k on k.scope {probe: r.scope} and k.key {probe: r.key} left join job_runs h on h.id {probe: k.run}

-- Set-based transitions ----------------------------------------------------------------------------------------------

-- The candidates of the open lanes in queue order, after a position that was read before. Takes no lock.
-- fragment: found sqlite
select r.seq, r.priority_key, r.position, r.lane, r.due_at, r.keys, octet_length(r.payload) from json_each(:lanes) as l cross join job_runs as r
where r.seq in (
  select q.seq from job_runs q
  where q.state = 'queued' and q.lane = l.value and (q.priority_key, q.position, q.seq) > (:priority_key, :position, :seq)
  order by q.priority_key, q.position, q.seq limit :each)
order by r.priority_key, r.position, r.seq limit :count

-- fragment: found postgres
select h.seq, h.priority_key, h.position, h.lane, h.due_at, h.keys, h.size
from json_array_elements_text(:lanes::json) as l(lane), lateral (
  select q.seq, q.priority_key, q.position, q.lane, q.due_at, q.keys, octet_length(q.payload) as size from job_runs q
  where q.state = 'queued' and q.lane = l.lane::bigint and (q.priority_key, q.position, q.seq) > (:priority_key, :position, :seq)
  order by q.priority_key, q.position, q.seq limit :each) as h
order by h.priority_key, h.position, h.seq limit :count

-- The newest lane and the controls' revision in one row, and the next runs of some lanes in others.
-- name: heads
select max(id), {controls}, null, null, null, null, null from job_lanes union all select * from ({found}) as h

-- name: remember_claims
insert into job_keys (scope, key, run, unfinished, until)
select 'claim', r.token, r.call, 0, :until from {rows: r: token text, call text} where true
on conflict (scope, key) do nothing

-- name: calls_under
select key, run from job_keys where scope = 'claim' and key {in_texts: names}

-- A run is claimed only in the lane where it was read: one that was moved to another lane meanwhile, or parked, is left out.
-- fragment: seen
{rows: c: seq int, lane int} join job_runs j on j.seq {probe: c.seq}
where j.lane = c.lane and j.state || '' {from: claim} and {controls} = :controls

-- Whether a claim may take anything: the call under its nonce is this one, and its one slot is free.
-- fragment: may_take
(cast(@call as text) is null or exists (select 1 from job_keys k where k.scope = 'claim' and k.key = @token and k.run = @call))
  and 0 = (select count(*) from job_runs b where b.worker = @worker and b.slot = @slot)

-- fragment: grant
state = 'claimed', rev = rev + 1, mark = :mark, token = @token, worker = @worker, slot = @slot, lease = @lease,
  claimed_at = {greatest}(:now, created_at), lease_until = :now + @lease,
  lease_check_at = :now + {least}(@lease, coalesce(max_runtime, @lease)), progress = null

-- fragment: first_seen
select j.seq from {seen} and {may_take: :} order by j.priority_key, j.position, j.seq limit :count {skip_locked: j}

-- The first of those that are still there.
-- name: claim
update job_runs set {grant: :} where seq {among: first_seen}

-- The same for several claims: those that are still there are numbered in their order, and each claim gets some of the numbers.
-- name: claim_each
with present as materialized (
  select j.seq, j.priority_key, j.position from {seen} order by j.priority_key, j.position, j.seq limit :count {skip_locked: j}),
numbered as materialized (select seq, row_number() over (order by priority_key, position, seq) as n from present),
asking as materialized (
  select g.* from {rows: g: token text, call text, worker text, slot int, lease int, first int, last int} where {may_take: g.})
update job_runs set {grant: g.}
from numbered join asking as g on numbered.n between g.first and g.last
where job_runs.seq {probe: numbered.seq}

-- name: claimed
select {run_claimed}{and_server_time} from job_runs where seq {in: ids} and mark = :mark

-- Corrects claims that were written with a wrong time, as if they were made now.
-- name: correct_claims
update job_runs
set claimed_at = {greatest}(:now, created_at), lease_until = :now + lease,
  lease_check_at = :now + {least}(lease, coalesce(max_runtime, lease))
from {rows: r: seq int, token text}
where job_runs.seq {probe: r.seq} and job_runs.token = r.token and state {from: beat}

-- The runs that a worker still holds from a claim whose answer was lost. Live leases only, so it is short.
-- name: held
select {run} from job_runs where lease_check_at is not null and token = :token and worker = :worker order by priority_key, position, seq

-- name: start
update job_runs set state = 'running', rev = rev + 1, mark = :mark, started_at = {greatest}(:now, claimed_at)
from {rows: r: seq int, token text}
where job_runs.seq {probe: r.seq} and job_runs.token = r.token and state {from: start running}
returning job_runs.seq, job_runs.token

-- Never longer than a lease from now: a later end was written before the clock was set back, and would hide
-- that this worker lives.
-- fragment: extended
{least}({greatest}(lease_until, :now + :lease), :now + {greatest}(lease, :lease))

-- fragment: beating sqlite
{rows: r: seq int, token text, progress text}

-- Only rows that are not locked: another transaction on one run must not delay the heartbeats of the others.
-- fragment: beating postgres
(select r.seq, r.token, r.progress from {rows: r: seq int, token text, progress text}, lateral (
  select j.seq from job_runs j where j.seq {probe: r.seq} and j.token = r.token {skip_locked: j}) as j) as r

-- name: beat
update job_runs set lease = {greatest}(lease, :lease), lease_until = {extended}, progress = coalesce(r.progress, job_runs.progress)
from {beating}
where job_runs.seq {probe: r.seq} and job_runs.token = r.token and state {from: beat}
returning job_runs.seq, job_runs.token, job_runs.state{and_server_time}

-- name: still_held
select seq, token from job_runs where seq {in: ids} and state in ({live})

-- name: succeed
update job_runs
set state = 'succeeded', rev = rev + 1, mark = :mark, started_at = coalesce(started_at, claimed_at),
  finished_at = {greatest}(:now, coalesce(started_at, claimed_at)),
  slot = null, lease_until = null, lease_check_at = null, error = null, output = r.output, output_hash = r.output_hash,
  output_key = r.output_key
from {rows: r: seq int, token text, output text, output_hash text, output_key text}
where job_runs.seq {probe: r.seq} and job_runs.token = r.token and state {from: succeed succeeded}
returning job_runs.seq

-- name: journal
insert into job_journal (run, rev, at, move, state, attempt, worker)
select seq, rev, :now, :move, state, attempt, worker from job_runs where seq {in: ids} and mark = :mark

-- name: due
select due_at, seq from job_runs where state {from: dispatch} and due_at <= :now and (due_at, seq) > (:at, :seq)
order by due_at, seq limit :count

-- name: dispatch
with chosen as materialized (
  select seq from job_runs where seq {in: ids} and state || '' {from: dispatch} and due_at <= :now order by seq {skip_locked})
update job_runs set state = 'queued', rev = rev + 1, mark = :mark from chosen where job_runs.seq {probe: chosen.seq}
returning job_runs.seq, job_runs.queue

-- Transitions decided by `step` and written back: guarded by the revision that was read, and by the lease if the reason is an
-- expired lease (a heartbeat leaves no revision). A transition either keeps the lease or drops it.
-- name: write_back
update job_runs
set {each: written_back: @ = r.@}, mark = :mark, lease = case when r.lease is null then null else job_runs.lease end,
  lease_until = case when r.lease_check_at is null then null else job_runs.lease_until end
from {rows: r: seq int, *written_back, lease int, lapsed int}
where job_runs.seq {probe: r.seq} and job_runs.rev = r.rev - 1 and (r.lapsed is null or job_runs.lease_until = r.lapsed)
returning job_runs.seq

-- name: close_attempts
insert into job_attempts (run, {closed}, answer, finished_at)
select r.seq, {closed: r}, r.answer, {greatest}(:now, coalesce(r.started_at, r.claimed_at, :now))
from {rows: r: seq int, *closed, answer text}
join job_runs j on j.seq {probe: r.seq} and j.mark = :mark

-- name: journal_moves
insert into job_journal (run, rev, at, move, state, attempt, worker, detail, left_queue)
select j.seq, j.rev, :now, r.move, j.state, r.attempt, r.worker, r.detail, r.left_queue
from {rows: r: seq int, move text, attempt int, worker text, detail text, left_queue text} join job_runs j on j.seq {probe: r.seq} and j.mark = :mark

-- name: patch
update job_runs
set {each: patched: @ = r.@}, mark = :mark
from {rows: r: seq int, *patched}
where job_runs.seq {probe: r.seq} and job_runs.rev = r.rev - 1 and job_runs.state {from: patch} and {controls} = :controls
returning job_runs.seq

-- Closed attempts that have no payload of their own have run with the one that the patch has just replaced.
-- name: keep_payload
update job_attempts set payload = :payload
where run = :seq and payload is null and exists (select 1 from job_runs where seq = :seq and mark = :mark)

-- Dependents of runs that have ended ---------------------------------------------------------------------------------

-- Most runs have no dependents, and then nothing is looked up: `exists` is evaluated once.
-- Runs that can no longer start, because a run that had to succeed did not; and all that depend on them.
-- fragment: cancelled_dependents
with recursive cancelled_dependents(run) as (
  select w.run from job_waits w join job_runs p on p.seq {probe: w.predecessor}
  where exists (select 1 from job_waits) and w.predecessor {in: ids} and w.rule <> 'any' and p.state in ({ended}) and p.state <> 'succeeded'
  union
  select w.run from cancelled_dependents d cross join job_waits w where w.predecessor {probe: d.run} and w.rule <> 'any')

-- fragment: dependents
select run from job_waits where exists (select 1 from job_waits) and predecessor {in: ids} and rule <> ''
union all select run from cancelled_dependents
union all select w.run from cancelled_dependents d cross join job_waits w where w.predecessor {probe: d.run} and w.rule <> ''
union all select c.seq from job_groups g cross join job_runs c
  where g.seq {among: groups_of} and g.finished_at is not null and c.id {probe: coalesce(g.callback, '')}

-- fragment: runs_to_cancel
select run from cancelled_dependents

-- Whether it is skipped, and not cancelled, when it cannot start: by the rule of its group.
-- fragment: skips
0 < (select count(*) from job_waits w where w.run = job_runs.seq and w.rule = 'skip')

-- Whether the end of these runs has any consequences: if not, the statements marked "after has_dependents" are left out.
-- name: has_dependents sqlite
select 1 from job_runs r
where r.seq {in: ids} and (r.grouped is not null or exists (select 1 from job_waits w where w.predecessor = r.seq)) limit 1

-- The rows that are counted next, locked in a separate statement.
-- name: lock_dependents postgres
{cancelled_dependents}
select seq from job_runs where seq {among: dependents} and state {from: release} order by seq for no key update

-- name: cancel_dependents after has_dependents
{cancelled_dependents}
update job_runs
set state = case when {skips} then 'skipped' else 'cancelled' end, rev = rev + 1, mark = :mark,
  cancel_asked_at = case when {skips} then null else cast(:now as {int}) end, finished_at = {greatest}(:now, created_at), reason = 'predecessor failed'
where seq {among: runs_to_cancel} and state {from: release}

-- A dependent that a caller has committed since `cancel_dependents` read is not released here: it has a check, and a sweep settles it.
-- name: release after has_dependents
{cancelled_dependents}
update job_runs
set state = case when due_at > :now then 'scheduled' else 'queued' end, rev = rev + 1, mark = :mark
where seq {among: dependents} and state {from: release}
  and 0 = (select count(*) from job_waits w where w.run = job_runs.seq
    and (select p.finished_at is null or w.rule <> 'any' and p.state <> 'succeeded' from job_runs p where p.seq = w.predecessor))
returning queue, due_at

-- name: journal_dependents after has_dependents
{cancelled_dependents}
insert into job_journal (run, rev, at, move, state, attempt)
select seq, rev, :now, case state when 'cancelled' then 'cancel' when 'skipped' then 'skip' else 'release' end, state, attempt
from job_runs where seq {among: dependents} and mark = :mark

-- A new run has no dependents, and no other transaction sees it: the locks of its predecessors have settled their states.
-- name: cancel_created
update job_runs
set state = 'cancelled', rev = rev + 1, mark = :mark, cancel_asked_at = :now, finished_at = {greatest}(:now, created_at),
  reason = 'predecessor failed'
where id {in_texts: ids} and state || '' {from: release} and 0 < (
  select count(*) from job_waits w where w.run = job_runs.seq and w.rule = 'success'
    and (select p.state in ({ended}) and p.state <> 'succeeded' from job_runs p where p.seq = w.predecessor))

-- name: release_created
update job_runs
set state = case when due_at > :now then 'scheduled' else 'queued' end, rev = rev + 1, mark = :mark
where id {in_texts: ids} and state || '' {from: release}
  and 0 = (select count(*) from job_waits w where w.run = job_runs.seq and (select p.finished_at is null from job_runs p where p.seq = w.predecessor))
returning queue, due_at

-- name: journal_settled
insert into job_journal (run, rev, at, move, state, attempt)
select seq, rev, :now, case state when 'cancelled' then 'cancel' else 'release' end, state, attempt
from job_runs where id {in_texts: ids} and mark = :mark order by seq + 0

-- Waits of callers' transactions that are to be settled --------------------------------------------------------------

-- name: checks
select run from job_checks where run > :after order by run limit :count

-- Their predecessors that have ended: they are handled as if they ended now.
-- name: checked_ends
select w.predecessor from job_waits w
where w.run {in: ids} and w.rule <> '' and (select p.finished_at is not null from job_runs p where p.seq = w.predecessor)

-- fragment: checked_predecessors
select w.predecessor from job_waits w where w.run {in: ids} and w.rule <> ''

-- A process that ends a predecessor later finds the wait, because the predecessor is locked here and the wait is committed. One that is
-- locked by another transaction may just be ending: then the check stays.
-- name: drop_checks
with unended as materialized (
  select p.seq from job_runs p where p.seq {among: checked_predecessors} and p.finished_at is null order by p.seq {skip_changing})
delete from job_checks
where run {in: ids} and (
  (select f.state {from: release} from job_runs f where f.seq = job_checks.run) is not true
  or (select count(*) from job_waits w where w.run = job_checks.run)
    > (select count(*) from job_waits w where w.run = job_checks.run and w.predecessor not in (select seq from unended))
    and 0 = (select count(*) from job_waits w where w.run = job_checks.run and w.predecessor not in (select seq from unended)
      and (select p.state = 'succeeded' or w.rule = 'any' and p.finished_at is not null from job_runs p where p.seq = w.predecessor) is not true))

-- Rows locked by other transactions ----------------------------------------------------------------------------------

-- fragment: reached
select run from reach

-- Those that a sweep can write without waiting for a lock: neither they nor, for those that end, their consequences are locked. The
-- locks are released at once: a row that is locked between this and the write is waited for.
-- name: unlocked
with recursive reach(root, run) as (
  select w.predecessor, w.run from job_waits w where exists (select 1 from job_waits) and w.predecessor {in: ending} and w.rule <> ''
  union
  select h.root, w.run from reach h cross join job_waits w where w.predecessor {probe: h.run} and w.rule <> 'any'),
free as materialized (select seq, grouped from job_runs where seq {in: ids} order by seq {skip_locked}),
free_groups as materialized (select seq from job_groups where seq {among: groups_of} order by seq {skip_locked}),
free_followers as materialized (select seq from job_runs where seq {among: reached} and state || '' {from: release} order by seq {skip_locked})
select seq from free
where (grouped is null or grouped in (select seq from free_groups))
  and seq not in (
    select h.root from reach h
    where (select f.state {from: release} from job_runs f where f.seq = h.run) and h.run not in (select seq from free_followers))

-- Leases ---------------------------------------------------------------------------------------------------------

-- name: overdue
select {run_bare} from job_runs where lease_check_at <= :now and (lease_check_at, seq) > (:lease_check_at, :seq) order by lease_check_at, seq limit :count

-- A check is never due later than a lease after it was written, unless the clock was set back since.
-- name: looked_at_late
select {run} from job_runs where lease_check_at > :now and lease_check_at > :now + lease order by lease_check_at, seq limit :count

-- fragment: looked_at sqlite
{rows: r: seq int, rev int, lease_check_at int}

-- fragment: looked_at postgres
(select r.seq, r.rev, r.lease_check_at from {rows: r: seq int, rev int, lease_check_at int}, lateral (
  select j.seq from job_runs j where j.seq {probe: r.seq} and j.rev = r.rev {skip_locked: j}) as j) as r

-- name: postpone_check
update job_runs set lease_check_at = r.lease_check_at from {looked_at}
where job_runs.seq {probe: r.seq} and job_runs.rev = r.rev and job_runs.state in ({live})

-- Of leases, direct calls and schedules, those that were already checked do not count: they have moved on or must wait.
-- name: next_times
select
  (select due_at from job_runs where state {from: dispatch} order by due_at limit 1),
  (select wake_at from job_limiters where wake_at is not null order by wake_at limit 1),
  (select lease_check_at from job_runs where lease_check_at > :now order by lease_check_at limit 1),
  (select min(lease_until) from job_slots where lease_until > :now),
  (select next_at from job_schedules where next_at > :now order by next_at limit 1)

-- Reading --------------------------------------------------------------------------------------------------------

-- name: find
select {run} from job_runs where id = :id

-- name: find_attempt
select {run: j} from job_runs j where j.attempt_id = :id
union all
select {run: j} from job_attempts a join job_runs j on j.seq {probe: a.run} where a.id = :id

-- name: seqs
select id, seq from job_runs where id {in_texts: ids} order by seq + 0

-- name: find_ids
select {run} from job_runs where id {in_texts: ids}

-- name: find_seqs
select {run} from job_runs where seq {in: ids} order by seq

-- name: find_bare
select {run_bare} from job_runs where seq {in: ids} order by seq

-- name: pruned_key
select key from job_keys where run = :id limit 1

-- name: attempts_of
select run, {attempt} from job_attempts where run {in: ids} order by run, n

-- name: attempt_of
select {attempt} from job_attempts where run = :seq and (n = :n or id = :id)

-- name: closed_attempt
select n, outcome, answer, error from job_attempts where run = :seq and token = :token

-- name: history
select rev, at, move, state, attempt, worker, detail from job_journal where run = :seq and rev > :after order by rev limit :count

-- name: predecessors
select p.id, p.state, w.rule from job_waits w join job_runs p on p.seq {probe: w.predecessor} where w.run = :seq order by w.predecessor + 0 limit :count

-- Lists leave large members in the database: of a text that is stored out of line not even its beginning is read.
-- name: list_seqs
select {run_within: limit} from job_runs where seq {in: ids} order by seq

-- name: list_newest
select {run_within: limit} from job_runs where seq < :seq order by seq desc limit :count

-- name: list_job
select {run_within: limit} from job_runs where job = :job and seq + 0 < :seq order by seq + 0 desc limit :count

-- fragment: ended_in
select seq from job_runs
where finished_at is not null and state = :state and {own_keep} = @ and (finished_at, seq) < (:at, :seq)
order by finished_at desc, seq desc limit :count

-- fragment: latest_ended
select seq from ({ended_in: 0}) as others union all select seq from ({ended_in: 1}) as own

-- The latest in either part of the index, and of these the latest.
-- name: list_ended
select {run_within: limit} from job_runs where seq {among: latest_ended} order by finished_at desc, seq desc limit :count

-- name: list_job_ended
select {run_within: limit} from job_runs {using: job_runs_job_ended}
where finished_at is not null and job = :job and state = :state and (finished_at, seq) < (:at, :seq)
order by finished_at desc, seq desc limit :count

-- name: list_scheduled
select {run_within: limit} from job_runs where state = 'scheduled' and (due_at, seq) > (:at, :seq) order by due_at, seq limit :count

-- name: list_waiting
select {run_within: limit} from job_runs where state = 'waiting' and seq > :seq order by seq limit :count

-- name: list_live
select {run_within: limit} from job_runs where lease_check_at is not null and (lease_check_at, seq) > (:at, :seq) order by lease_check_at, seq limit :count

-- The newest runs of a queue in one state, if it is one of those asked for. The index has all that is read of them.
-- fragment: newest_in_state
select q.seq, {priority: q} as priority from job_runs q
where q.queue <> 'default' and q.queue = :queue and q.state = '@' and q.seq + 0 < :seq and '@' {in_texts: states}
order by q.seq + 0 desc limit :each

-- fragment: newest_seqs
select h.seq from ({in_each_state: newest_in_state}) as h order by h.seq desc limit :each

-- name: ranked
select h.seq from ({in_each_state: newest_in_state}) as h order by h.priority desc, h.seq desc limit :count offset :offset

-- The same for the queue that the index leaves out, among the newest runs of all queues: from one seq down to another.
-- name: ranked_default
select r.seq from job_runs r
where r.seq < :seq and r.seq >= :low and r.queue = :queue and r.state {in_texts: states}
order by {priority: r} desc, r.seq desc limit :count offset :offset

-- The last of so many runs before a seq, if there are as many.
-- name: seq_below
select seq from job_runs where seq < :seq order by seq desc limit 1 offset :each - 1

-- Walks: the next runs along an index, in the order of a list; `matching` has those of them that match its filters.

-- name: walk_newest
select seq from job_runs where seq < :seq and seq >= :low order by seq desc limit :count

-- name: walk_job
select seq from job_runs where job = :job and seq + 0 < :seq and seq + 0 >= :low order by seq + 0 desc limit :count

-- name: walk_queue
{newest_seqs}

-- name: walk_group
select seq from job_runs where grouped = :grouped and seq < :seq and seq >= :low order by seq desc limit :count

-- All that are live, which are few.
-- name: walk_live
select seq from job_runs where lease_check_at is not null and abs(seq) < :seq and abs(seq) >= :low order by abs(seq) desc limit :count

-- name: walk_waiting
select seq from job_runs where state = 'waiting' and seq < :seq and seq >= :low order by seq desc limit :count

-- name: walk_scheduled
select due_at, seq from job_runs where state = 'scheduled' and (due_at, seq) > (:at, :seq) order by due_at, seq limit :count

-- fragment: ends_in
select finished_at as at, seq from job_runs
where finished_at is not null and state = :state and {own_keep} = @ and (finished_at, seq) < (:at, :seq) and finished_at >= :since
order by finished_at desc, seq desc limit :count

-- name: walk_ended
select at, seq from (select * from ({ends_in: 0}) as others union all select * from ({ends_in: 1}) as own) as h order by at desc, seq desc limit :count

-- name: walk_job_ended
select finished_at, seq from job_runs {using: job_runs_job_ended}
where finished_at is not null and job = :job and state = :state and (finished_at, seq) < (:at, :seq) and finished_at >= :since
order by finished_at desc, seq desc limit :count

-- A filter that is null asks nothing.
-- name: matching
select r.seq from job_runs r
where r.seq {in: ids} and r.state {in_texts: states}
  and (cast(:job as text) is null or r.job = :job)
  and (cast(:queue as text) is null or r.queue = :queue)
  and (cast(:worker as text) is null or r.worker = :worker)
  and (cast(:grouped as {int}) is null or r.grouped = :grouped)
  and (cast(:schedule as {int}) is null or r.schedule = :schedule)
  and (cast(:lanes as text) is null or abs(r.lane) {in: lanes})
  and r.created_at >= :created_since and r.created_at < :created_before
  and coalesce(r.finished_at, -1) >= :ended_since and coalesce(r.finished_at, -1) < :ended_before
  and (cast(:error as text) is null or {member: r.error code} = :error)
  and (cast(:key as text) is null or (select 1 from job_keys k where k.run {probe: r.id} and k.key || '' = :key limit 1) is not null)
  and (cast(:begins as text) is null or {lower: r.id} like :begins escape '!' or {lower: r.id} like :ends escape '!'
    or {lower_member: r.error message} like :has escape '!'
    or (select 1 from job_keys k where k.run {probe: r.id} and k.scope <> 'claim' and {lower: k.key} like :begins escape '!' limit 1) is not null)

-- The next run from a seq on, with the instant of its creation.
-- name: created_from
select seq, created_at from job_runs where seq >= :seq order by seq limit 1

-- Log lines ------------------------------------------------------------------------------------------------------

-- name: lock_run postgres
select 1 from job_runs where seq = :seq for no key update

-- The last line has the sum of bytes, so a call reads one row. A skipped number has its share of the limit reserved: a line
-- that comes late is cut to that. The first one that does not fit is replaced by a note, and ends the log. A line that follows the
-- request to stop is later than that, also within its millisecond: readers can tell what was written before it.
-- name: add_lines
insert into job_logs (run, attempt, n, at, text, size)
select :seq, s.attempt, s.n, {greatest}(:now, s.asked_at + 1),
  case when s.n < s.last then substr(s.text, 1, cast(:late as integer)) when s.size <= :log then s.text else :notice end,
  case when s.n < s.last then 0 else s.size end
from (
  select h.attempt, h.last, h.asked_at, r.n, r.text,
    h.size + sum(octet_length(r.text)) over w + :share * (r.n - h.last - row_number() over w) as size
  from (
    select j.attempt, coalesce(j.cancel_asked_at, -1) as asked_at,
      coalesce((select l.n from job_logs l where l.run = j.seq and l.attempt = j.attempt order by l.n desc limit 1), 0) as last,
      coalesce((select l.size from job_logs l where l.run = j.seq and l.attempt = j.attempt order by l.n desc limit 1), 0) as size
    from job_runs j
    where j.seq = :seq and j.token = :token and j.state in ({live})
    limit 1
  ) as h cross join {rows: r: n int, text text}
  where r.n <= :limit and h.size <= :log
  window w as (partition by r.n > h.last order by r.n)
) as s
where s.n < s.last or s.size - octet_length(s.text) <= :log
on conflict (run, attempt, n) do nothing

-- Up to the last line of an attempt, and up to an instant.
-- fragment: lines_between
select attempt, n, at, text from job_logs where run = :seq and (attempt, n) > (:attempt, :n) and attempt <= :upto and at <= :until

-- name: lines
{lines_between} order by attempt, n limit :count

-- name: last_lines
select attempt, n, at, text from ({lines_between} order by attempt desc, n desc limit :count) as l order by attempt, n

-- Why ------------------------------------------------------------------------------------------------------------

-- name: register
insert into workers ({worker}, about, schemas, registered_at, seen_at)
values ({each: worker: :@}, :about, :schemas, :now, :now)
on conflict (name) do update
  set {each: worker_says: @ = excluded.@}, about = coalesce(excluded.about, workers.about), seen_at = excluded.seen_at, stopped_at = null,
    schemas = case when excluded.about is null and excluded.schemas is null then workers.schemas else excluded.schemas end

-- name: workers_seen
select {worker}, seen_at from workers where seen_at >= :since and stopped_at is null order by name

-- name: schemas_seen
select {worker}, schemas from workers where seen_at >= :since and stopped_at is null order by name

-- Retention ------------------------------------------------------------------------------------------------------

-- Whether an unfinished run may still read it: a dependent, or the callback of its group.
-- fragment: needed
((select 1 from job_waits w where w.predecessor = job_runs.seq
    and (select f.finished_at is null from job_runs f where f.seq = w.run) limit 1) is not null
  or (select c.finished_at is null from job_runs c where c.id = (select g.callback from job_groups g where g.seq = job_runs.grouped)))

-- Which part of the index of ended runs: 0 for those with the store's retention, 1 for those with their own.
-- fragment: own_keep
(case when keep is null then 0 else 1 end)

-- Runs that are kept are read too: the next page starts after them.
-- name: prunable
select seq, finished_at, {needed} from job_runs
where finished_at is not null and state = :state and {own_keep} = 0 and finished_at < :before and (finished_at, seq) > (:at, :seq)
order by finished_at, seq limit :count

-- The same for those with their own retention, by its end. Entries that the journal's consumers have not read yet are kept.
-- name: prunable_own
select seq, finished_at + keep, {needed} or finished_at > :read and finished_at + keep >= :until from job_runs
where keep is not null and finished_at + keep < :before and (finished_at + keep, seq) > (:at, :seq)
order by finished_at + keep, seq limit :count

-- Those that can be removed without waiting for a lock: neither they nor their keys are locked.
-- name: unlocked_old
with free as materialized (select seq, id from job_runs where seq {in: ids} order by seq {skip_referenced}),
free_keys as materialized (select scope, key, run from job_keys where unfinished = 1 and run {among: named} order by scope || '', key {skip_referenced})
select seq from free
where (select count(*) from job_keys k where k.unfinished = 1 and k.run = free.id) = (select count(*) from free_keys k where k.run = free.id)

-- Once locked, no new run can wait for them.
-- name: lock_pruned postgres
select seq from job_runs where seq {in: ids} order by seq for update

-- Fails the batch: a run that was to be removed is needed again.
-- name: refuse_prune
insert into schema_version (version, applied_at)
select 1, :now where exists (select 1 from job_runs where seq {in: ids} and {needed})

-- fragment: named
select id from job_runs where seq {in: ids}

-- In the order in which creations lock them.
-- name: lock_pruned_keys postgres
select 1 from job_keys where unfinished = 1 and run {among: named} order by scope || '', key for update

-- name: prune_keys
delete from job_keys where unfinished = 1 and run {among: named}

-- name: prune_journal
delete from job_journal where run {in: ids}

-- name: prune_attempts
delete from job_attempts where run {in: ids}

-- name: prune_logs
delete from job_logs where run {in: ids}

-- name: prune_waits
delete from job_waits where run {in: ids}

-- name: prune_dependents
delete from job_waits where predecessor {in: ids}

-- name: prune_notify
delete from job_notify where run {in: ids}

-- The shortest retention of its own with which a run was removed: an older offset in the journal may have gaps behind it.
-- name: note_shortest
insert into store_settings (name, value, at)
select 'shortest', shortest, :now from (select min(keep) as shortest from job_runs where seq {in: ids}) as kept where shortest is not null
on conflict (name) do update set value = excluded.value, at = excluded.at where excluded.value < store_settings.value

-- name: prune_runs
delete from job_runs where seq {in: ids}

-- A claimed run leaves a dead entry at the head of the ready index, where every claim begins to read.
-- name: dead_runs postgres
select n_dead_tup, n_live_tup from pg_stat_user_tables where relid = 'job_runs'::regclass

-- name: vacuum_runs postgres
vacuum (index_cleanup on, truncate off, skip_locked) job_runs

-- name: expired_keys
select scope, key from job_keys where until <= :now order by until limit :count

-- fragment: scopes
select r.scope from {rows: r: scope text, key text}

-- fragment: keys
select r.key from {rows: r: scope text, key text}

-- name: drop_keys sqlite
delete from job_keys where scope {among: scopes} and key {among: keys} and coalesce(until, :now + 1) <= :now
returning key

-- name: drop_keys postgres
delete from job_keys using (
  select r.scope, r.key from {rows: r: scope text, key text}, lateral (
    select 1 from job_keys k where k.scope {probe: r.scope} and k.key {probe: r.key} and coalesce(k.until, :now + 1) <= :now {skip_referenced}) as k) as r
where job_keys.scope {probe: r.scope} and job_keys.key {probe: r.key} returning job_keys.key

-- Schedules ------------------------------------------------------------------------------------------------------

-- name: add_schedule
insert into job_schedules (key, {schedule_written}, owner, rev, created_at, updated_at)
values (:key, {each: schedule_written: :@}, :owner, 1, :now, :now)
on conflict (key) do nothing
returning id

-- name: edit_schedule
update job_schedules
set {each: schedule_written: @ = :@},
  skipped = skipped + :skipped, mark = :mark, rev = rev + 1, updated_at = :now
where id = :id and rev = :rev and coalesce(next_at, -1) = :seen
returning id

-- name: drop_skips
delete from job_skips where schedule = :id

-- name: drop_schedule
delete from job_schedules where id = :id returning id

-- name: schedule_by_key
select {schedule} from job_schedules where key = :key

-- name: schedules_after
select {schedule} from job_schedules where key > :after order by key limit :count

-- name: schedules_due
select {schedule} from job_schedules
where next_at <= :now and (next_at, created_at, id) > (:at, :since, :seq) order by next_at, created_at, id limit :count

-- name: schedule_skips
select first_at, last_at, number, reason, at from job_skips where schedule = :id order by id desc limit :count

-- The unfinished runs of these schedules, for the overlap policy, and whether a new run could wait for them now: another transaction may
-- have locked them.
-- name: unfinished_of_schedules
with free as materialized (
  select seq from job_runs where schedule {in: ids} and finished_at is null order by schedule, seq {skip_changing})
select schedule, id, state, seq in (select seq from free) from job_runs where schedule {in: ids} and finished_at is null order by schedule, seq

-- A schedule advances only from the instant and the definition that were read. The index of instants must not be used to find it.
-- name: advance_schedules
update job_schedules
set next_at = r.next_at, last_at = coalesce(r.due_at, job_schedules.last_at), last_run = coalesce(r.run, job_schedules.last_run),
  fired = job_schedules.fired + r.fired, skipped = job_schedules.skipped + r.skipped, mark = :mark
from {rows: r: id int, rev int, seen int, next_at int, due_at int, run text, fired int, skipped int}
where job_schedules.id {probe: r.id} and coalesce(job_schedules.next_at, -1) = r.seen and job_schedules.rev = r.rev
returning job_schedules.id

-- Fails the batch if another process was first, or a schedule was edited: then it is read again.
-- name: refuse_fire
insert into schema_version (version, applied_at)
select 1, :now where (select count(*) from job_schedules where id {in: ids} and mark = :mark) <> :expected

-- name: add_skips
insert into job_skips (schedule, first_at, last_at, number, reason, at)
select r.schedule, r.first_at, r.last_at, r.number, r.reason, :now
from {rows: r: schedule int, first_at int, last_at int, number int, reason text} join job_schedules s on s.id {probe: r.schedule} and s.mark = :mark
