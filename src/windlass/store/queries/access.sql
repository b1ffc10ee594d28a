-- Tokens and audit ---------------------------------------------------------------------------------------------------

-- fragment: token
id, name, hash, scopes, worker, kind, created_at, ttl, expires_at, revoked_at, used_at, coalesce(principal, name)

-- name: add_token
insert into job_tokens (id, name, hash, scopes, worker, kind, created_at, ttl, expires_at, principal)
select :id, :name, :hash, :scopes, :worker, :kind, :now, :ttl, :expires_at, :principal
where (select count(*) from job_tokens) < :limit

-- Like refuse_create: there are too many, so the batch does nothing.
-- name: refuse_token
insert into schema_version (version, applied_at)
select 1, 0 where not exists (select 1 from job_tokens where id {probe: :id})

-- name: token
select {token} from job_tokens where id {probe: :id}

-- name: token_by_hash
select {token} from job_tokens where hash {probe: :hash}

-- name: tokens_after
select {token} from job_tokens where id > :after order by id limit :count

-- name: any_token
select 1 from job_tokens where kind = 'token' limit 1

-- name: mark_used
update job_tokens set used_at = :at where id {probe: :id} and (used_at is null or used_at < :at)

-- name: revoke_token
update job_tokens set revoked_at = :now where id {probe: :id} and revoked_at is null

-- name: end_token
update job_tokens set expires_at = :expires_at
where id {probe: :id} and revoked_at is null and (expires_at is null or expires_at > :now)

-- A token that was revoked meanwhile has no successor.
-- name: refuse_rotate
insert into schema_version (version, applied_at)
select 1, 0 where not exists (select 1 from job_tokens where id {probe: :id} and revoked_at is null and expires_at = :expires_at)

-- An invitation becomes a session and is removed, so it is valid once.
-- name: sign_in
update job_tokens set kind = 'session', hash = :hash, created_at = :now, ttl = :ttl, expires_at = :expires_at
where hash {probe: :invitation} and kind = 'invitation' and revoked_at is null and expires_at > :now

-- Only if there is a session now: an attempt with a wrong one leaves no trace.
-- name: audit_sign_in
insert into job_audit (at, actor, what, subject)
select created_at, name, 'sign in', 'session ' || id from job_tokens where hash {probe: :hash}

-- The newest token stays however old it is: a hub whose tokens have all ended must not look like one that never had any.
-- name: old_tokens
select t.id from job_tokens t
where (t.expires_at < :before or t.revoked_at < :before)
  and (t.kind <> 'token' or exists (select 1 from job_tokens n where n.kind = 'token' and n.id > t.id))
limit :count

-- name: drop_tokens
delete from job_tokens where id {in_texts: ids}

-- name: add_audit
insert into job_audit (at, actor, what, subject) values (:at, :actor, :what, :subject)

-- name: audit_before
select id, at, actor, what, subject from job_audit where id < :before order by id desc limit :count

-- name: old_audit
select id from job_audit where at < :before order by at limit :count

-- name: drop_audit
delete from job_audit where id {in: ids}
