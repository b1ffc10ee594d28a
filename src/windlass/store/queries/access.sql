-- Who may do what, and who did what ------------------------------------------------------------------------------

-- name: add_audit
insert into audit (at, who, what, subject) values (:at, :who, :what, :subject)
