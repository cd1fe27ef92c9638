package records

import (
	"context"
	"database/sql/driver"
	"time"

	"github.com/artifactfs/artifactfs/internal/clock"
)

// maxStatements is the maximum number of statements that a connection keeps prepared. This package has fewer different
// statements, not counting those whose text depends on the length of a list.
const maxStatements = 200

// sqliteConn lists the interfaces that the connections of the SQLite driver implement.
type sqliteConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// preparing is a connector whose connections keep prepared statements, because SQLite needs longer to compile most
// statements than to run them.
type preparing struct{ driver.Connector }

// Connect opens a connection. SQLite waits for a lock of another process only in statements, and not when it begins to
// use the log of the database, for example while another process closes the database as its last user. Therefore
// Connect repeats the attempt.
func (p preparing) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := p.Connector.Connect(ctx)
	for start := time.Now(); isBusy(err) && time.Since(start) < busyTime && clock.Wait(ctx, 5*time.Millisecond); {
		c, err = p.Connector.Connect(ctx)
	}
	if err != nil {
		return nil, err
	}
	return &preparedConn{sqliteConn: c.(sqliteConn), prepared: map[string]driver.Stmt{}}, nil
}

// preparedConn is a connection with prepared statements. Package database/sql uses a connection in one goroutine at a
// time. A statement must not be run again while its rows are read.
type preparedConn struct {
	sqliteConn
	prepared map[string]driver.Stmt // prepared statements by text
}

// statement returns the prepared statement with this text, and prepares it if necessary.
func (c *preparedConn) statement(ctx context.Context, text string) (driver.Stmt, error) {
	if s := c.prepared[text]; s != nil {
		return s, nil
	}
	if len(c.prepared) >= maxStatements {
		// After ErrSkip, package sql prepares the statement itself, for one use.
		return nil, driver.ErrSkip
	}
	s, err := c.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	c.prepared[text] = s
	return s, nil
}

func (c *preparedConn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	s, err := c.statement(ctx, text)
	if err != nil {
		return nil, err
	}
	return s.(driver.StmtExecContext).ExecContext(ctx, args)
}

func (c *preparedConn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	s, err := c.statement(ctx, text)
	if err != nil {
		return nil, err
	}
	return s.(driver.StmtQueryContext).QueryContext(ctx, args)
}

func (c *preparedConn) Close() error {
	for _, s := range c.prepared {
		s.Close()
	}
	return c.sqliteConn.Close()
}
