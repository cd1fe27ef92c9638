package records

import (
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx" of database/sql
	_ "modernc.org/sqlite"             // the driver "sqlite", in pure Go
)
