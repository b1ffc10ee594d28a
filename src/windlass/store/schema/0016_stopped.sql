-- When a worker stopped as it should, with nothing in its hands. Null: it works, or it was never heard of again.

alter table workers add column stopped_at {int};
