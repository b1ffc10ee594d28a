-- Settings of the store ----------------------------------------------------------------------------------------------

-- name: store_settings
select name, value, actor, at from store_settings order by name

-- name: set_setting
insert into store_settings (name, value, actor, at) select r.name, r.value, :actor, :now from {rows: r: name text, value int} where true order by r.name
on conflict (name) do update set value = excluded.value, actor = excluded.actor, at = excluded.at

-- name: add_setting
insert into store_settings (name, value, at) select r.name, r.value, :now from {rows: r: name text, value int} where true order by r.name
on conflict (name) do nothing

-- Leases of background tasks -----------------------------------------------------------------------------------------

-- A lease longer than any can be was taken before the clock was set back.
-- name: take_turn
insert into store_turns (name, token, until) values (:name, :token, :until)
on conflict (name) do update set token = excluded.token, until = excluded.until
  where store_turns.token = excluded.token or store_turns.until <= :now or store_turns.until > :latest
returning name

-- name: end_turn
delete from store_turns where name = :name and token = :token
