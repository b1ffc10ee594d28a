-- Webhooks -------------------------------------------------------------------------------------------------------

-- name: webhooks
select {webhook} from webhooks order by id

-- name: webhook
select {webhook} from webhooks where id = :id

-- The journal was not consumed while there was no endpoint of the format.
-- name: restart_tail
update job_consumers set cursor = :cursor, rev = rev + 1, at = :at
where name = :name and not exists (select 1 from webhooks where format = :format)

-- name: add_webhook
insert into webhooks ({webhook_added}, failures, paused_until, begins, rev, created_at, updated_at)
select {webhook_added: r}, 0, 0, :cursor, 1, :now, :now
from {rows: r: *webhook_added}
where r.origin is not null or (select count(*) from webhooks where origin is null) < :limit
on conflict (id) do nothing
returning id

-- name: edit_webhook
update webhooks
set {each: webhook_edited: @ = r.@}, rev = r.rev + 1, updated_at = :now
from {rows: r: id text, *webhook_edited, rev int}
where webhooks.id = r.id and webhooks.rev = r.rev
returning webhooks.id

-- Under the lock of the offset, which creating deliveries takes first: none can be created in between.
-- name: drop_webhook
delete from webhooks
where id = :id and (select d.id from job_deliveries d where d.webhook = :id order by d.webhook, d.seq + 0 limit 1) is null
returning id

-- Addresses that runs name -----------------------------------------------------------------------------------------

-- name: add_notify
insert into job_notify (run, url, format, events)
select n.seq, r.url, r.format, r.events from {rows: r: id text, url text, format text, events text} join job_runs n on n.id {probe: r.id}

-- name: notify_of
select n.id, a.url, a.format, a.events from job_runs n join job_notify a on a.run {probe: n.seq} where n.id {in_texts: names}

-- Origins that have nothing left to send. Under the lock of the offset, as above.
-- name: drop_origins
delete from webhooks
where id {in_texts: names} and created_at <= :before
  and (select d.id from job_deliveries d where d.webhook = webhooks.id and d.next_at is not null order by d.next_at limit 1) is null

-- Deliveries ------------------------------------------------------------------------------------------------------

-- What a body contains of a run beside the change itself; large outputs stay in the store.
-- name: ends
select {run_within: limit}
from job_runs where id {in_texts: names}

-- name: add_deliveries
insert into job_deliveries (id, webhook, run, rev, type, body, url, status, tries, next_at, created_at, until)
select r.id, r.webhook, r.run, r.rev, r.type, r.body, r.url, 'pending', 0, :now, :now, :until
from {rows: r: n int, id text, webhook text, run text, rev int, type text, body text, url text} join webhooks w on w.id {probe: r.webhook}
where w.enabled = 1 order by r.n
on conflict (webhook, run, rev) do nothing

-- The first due deliveries of each endpoint, so that a long queue of one of them does not hide those of others.
-- name: due_deliveries sqlite
select d.webhook, d.next_at, d.seq from json_each(:names) as l cross join job_deliveries as d
where d.seq in (
  select q.seq from job_deliveries q
  where q.webhook = l.value and q.next_at <= :now order by q.next_at, q.seq limit :count)
order by d.next_at, d.seq

-- name: due_deliveries postgres
select h.webhook, h.next_at, h.seq
from json_array_elements_text(:names::json) as l(id), lateral (
  select q.webhook, q.next_at, q.seq from job_deliveries q
  where q.webhook = l.id and q.next_at <= :now order by q.next_at, q.seq limit :count) as h
order by h.next_at, h.seq

-- name: next_deliveries sqlite
select (select d.next_at from job_deliveries d where d.webhook = l.value and d.next_at > :now order by d.next_at limit 1)
from json_each(:names) as l

-- name: next_deliveries postgres
select (select d.next_at from job_deliveries d where d.webhook = l.id and d.next_at > :now order by d.next_at limit 1)
from json_array_elements_text(:names::json) as l(id)

-- An endpoint that has failed too often is probed by one delivery of one process; all others wait for its outcome.
-- name: probe_webhooks
update webhooks set paused_until = :until, mark = :token where id {in_texts: names} and failures >= :limit and paused_until <= :now

-- fragment: due_chosen
select seq from job_deliveries
where seq {in: ids} and coalesce(next_at, :now + 1) <= :now
  and (select w.enabled = 1 and (w.paused_until <= :now or w.mark = :token) from webhooks w where w.id = job_deliveries.webhook)
order by seq {skip_locked}

-- name: claim_deliveries
update job_deliveries set token = :token, next_at = :until where seq {among: due_chosen}

-- name: claimed_deliveries
select body, {delivery} from job_deliveries where seq {in: ids} and token = :token order by seq

-- fragment: webhook_held
select webhook from job_deliveries where id = :id and token = :token

-- name: reset_webhook
update webhooks set failures = 0, paused_until = case when failures >= :limit then 0 else paused_until end
where failures > 0 and id = ({webhook_held})

-- name: record_webhook_failure
update webhooks set failures = failures + 1, paused_until = {greatest}(paused_until, :until) where id = ({webhook_held})

-- name: disable_webhook
update webhooks set enabled = 0, reason = :reason, rev = rev + 1, updated_at = :now where enabled = 1 and id = ({webhook_held})

-- name: settle_delivery
update job_deliveries
set status = :status, tries = tries + 1, next_at = cast(:next_at as {int}), token = null, answer = cast(:answer as {int}), error = cast(:error as text),
  finished_at = case when cast(:next_at as {int}) is null then cast(:now as {int}) end, until = coalesce(cast(:until as {int}), until)
where id = :id and token = :token
returning seq

-- name: resend_delivery
update job_deliveries set status = 'pending', tries = 0, next_at = :now, finished_at = null, until = :until where id = :id and token is null returning seq

-- name: delivery
select {delivery} from job_deliveries where id = :id

-- name: list_deliveries
select {delivery} from job_deliveries where webhook = :id and seq + 0 < :seq order by seq + 0 desc limit :count

-- name: list_deliveries_status
select {delivery} from job_deliveries where webhook = :id and status = :status and seq + 0 < :seq order by seq + 0 desc limit :count

-- name: deliveries_of_run
select {delivery} from job_deliveries where run = :run order by seq + 0 limit :count

-- name: deliveries_over
select seq, status from job_deliveries where until <= :now order by until limit :count

-- Every change of a delivery moves `until`, so an expired one is still as it was read.
-- name: give_up_deliveries
update job_deliveries set status = 'failed', next_at = null, token = null, error = :error, finished_at = :now, until = :until
where seq {in: ids} and until + 0 <= :now and (token is null or coalesce(next_at, :now) <= :now)
returning seq

-- name: prune_deliveries
delete from job_deliveries where seq {in: ids} and until + 0 <= :now returning seq

-- name: drop_deliveries
delete from job_deliveries where seq {in: ids}
