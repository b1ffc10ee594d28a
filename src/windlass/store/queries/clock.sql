-- The clock of the machine that a file belongs to. A server keeps its own time. --------------------------------------

-- name: scale sqlite
select boot, base, other, since, latest from store_clock where id = 1

-- name: keep_scale sqlite
insert into store_clock (id, boot, base, other, since, latest) values (1, :boot, :base, :other, :since, :latest)
on conflict (id) do update
  set boot = excluded.boot, base = excluded.base, other = excluded.other, since = excluded.since, latest = excluded.latest
