-- The scale of this machine's time: what the clock showed at the start of a boot (`base`), another that it shows since the clock was
-- set (`other`), first seen so many milliseconds after the start (`since`), and the latest time known. One row, for SQLite only.

create table store_clock (
  id {int} primary key,
  boot text not null,
  base {int} not null,
  other {int},
  since {int},
  latest {int} not null
) {strict};
