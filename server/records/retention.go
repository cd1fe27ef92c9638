package records

import (
	"context"
	"database/sql"
)

// Retention stores the rules by which sessions of namespaces are closed, archived and deleted, in a format of package
// retention.
type Retention struct{ db *DB }

// Get returns the rules of a namespace. It returns ErrNotFound if the namespace has none.
func (r *Retention) Get(ctx context.Context, namespace string) (rules string, err error) {
	err = r.db.single(ctx, "read retention of namespace "+namespace, func(t *tx) error {
		return t.one(ctx, []any{&rules}, "SELECT rules FROM retention WHERE namespace = $1", fold(namespace))
	})
	return rules, err
}

// Set sets the rules of a namespace, which must exist; "" removes them.
func (r *Retention) Set(ctx context.Context, namespace, rules string, cause Cause) error {
	return r.db.write(ctx, "set retention of namespace "+namespace, func(t *tx) error {
		n, err := t.count(ctx, "SELECT count(*) FROM namespaces WHERE folded = $1", fold(namespace))
		if err == nil && n == 0 {
			err = sql.ErrNoRows
		}
		if err != nil {
			return err
		}
		query, args := "DELETE FROM retention WHERE namespace = $1", []any{fold(namespace)}
		if rules != "" {
			query = `INSERT INTO retention (namespace, rules, updated) VALUES ($1, $2, $3)
				ON CONFLICT (namespace) DO UPDATE SET rules = excluded.rules, updated = excluded.updated`
			args = append(args, rules, t.now)
		}
		if _, err := t.exec(ctx, query, args...); err != nil {
			return err
		}
		return t.log(ctx, nil, cause.entry(t, 200, rules))
	})
}

// Namespaces returns the names of all namespaces that have rules.
func (r *Retention) Namespaces(ctx context.Context) ([]string, error) {
	return readList(ctx, r.db, "list namespaces with a retention", scanText,
		"SELECT n.name FROM retention r JOIN namespaces n ON n.folded = r.namespace ORDER BY n.folded")
}
