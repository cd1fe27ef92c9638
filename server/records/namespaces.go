package records

import (
	"context"
	"database/sql"
	"errors"
)

// Namespaces stores the namespaces. The case of names is ignored when names are looked up and compared.
type Namespaces struct{ db *DB }

const namespaceColumns = `name, jurisdiction, created, updated,
	(SELECT count(*) FROM repos r WHERE r.namespace_folded = namespaces.folded AND r.deleted = 0)`

func scanNamespace(row scanner) (n Namespace, err error) {
	err = row.Scan(&n.Name, &n.Jurisdiction, stamp{&n.Created}, stamp{&n.Updated}, &n.Repos)
	return n, err
}

// Create creates a namespace, or returns ErrExists.
func (n *Namespaces) Create(ctx context.Context, ns Namespace, cause Cause) error {
	return n.db.write(ctx, "create namespace "+ns.Name, func(t *tx) error {
		created, err := t.addNamespace(ctx, ns)
		if err == nil && !created {
			err = ErrExists
		}
		if err != nil {
			return err
		}
		return t.log(ctx, nil, cause.entry(t, 201, ""))
	})
}

// addNamespace adds a namespace unless it exists. created is true if it did not exist.
func (t *tx) addNamespace(ctx context.Context, ns Namespace) (created bool, err error) {
	if ns.Created.IsZero() {
		ns.Created = t.now
	}
	if ns.Updated.IsZero() {
		ns.Updated = ns.Created
	}
	if ns.Jurisdiction == "" {
		ns.Jurisdiction = "unrestricted"
	}
	rows, err := t.exec(ctx,
		`INSERT INTO namespaces (folded, name, jurisdiction, created, updated) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (folded) DO NOTHING`, fold(ns.Name), ns.Name, ns.Jurisdiction, ns.Created, ns.Updated)
	return rows == 1, err
}

// Get returns a namespace.
func (n *Namespaces) Get(ctx context.Context, name string) (Namespace, error) {
	return readFirst(ctx, n.db, "find namespace "+name, scanNamespace,
		"SELECT "+namespaceColumns+" FROM namespaces WHERE folded = $1", fold(name))
}

// List returns up to limit namespaces whose names follow the name after, in the order of their names, and the number of
// all namespaces. offset is the number of namespaces to skip.
func (n *Namespaces) List(ctx context.Context, after string,
	offset, limit int) (page []Namespace, total int, err error) {
	err = n.db.read(ctx, "list namespaces", func(t *tx) error {
		all, err := t.count(ctx, "SELECT count(*) FROM namespaces")
		if err != nil {
			return err
		}
		total = int(all)
		page, err = list(ctx, t, scanNamespace, "SELECT "+namespaceColumns+
			" FROM namespaces WHERE folded > $1 ORDER BY folded LIMIT $2 OFFSET $3", fold(after), limit, offset)
		return err
	})
	return page, total, err
}

// Delete removes a namespace. It returns ErrNotEmpty if the namespace has repositories. Tokens of owners of the
// namespace are revoked and its webhooks are removed, because another user may create a namespace with the same name
// again.
func (n *Namespaces) Delete(ctx context.Context, name string, cause Cause) error {
	return n.db.write(ctx, "delete namespace "+name, func(t *tx) error {
		// The lock makes this transaction wait for transactions that create repositories in the namespace (see
		// lockNamespace).
		var locked string
		if err := t.one(ctx, []any{&locked}, "SELECT name FROM namespaces WHERE folded = $1{update}",
			fold(name)); err != nil {
			return err
		}
		repos, err := t.count(ctx, "SELECT count(*) FROM repos WHERE namespace_folded = $1 AND deleted = 0", fold(name))
		if err != nil {
			return err
		}
		if repos != 0 {
			return ErrNotEmpty
		}
		if _, err := t.exec(ctx, "DELETE FROM namespaces WHERE folded = $1", fold(name)); err != nil {
			return err
		}
		if _, err := t.exec(ctx, "UPDATE tokens SET revoked = $2 WHERE role = $3 AND lower(namespace) = $1 AND revoked = 0",
			fold(name), t.now, string(OwnerToken)); err != nil {
			return err
		}
		for _, statement := range []string{
			"DELETE FROM deliveries WHERE webhook IN (SELECT id FROM webhooks WHERE lower(namespace) = $1)",
			"DELETE FROM webhooks WHERE lower(namespace) = $1",
		} {
			if _, err := t.exec(ctx, statement, fold(name)); err != nil {
				return err
			}
		}
		return t.log(ctx, nil, cause.entry(t, 204, ""))
	})
}

// lockNamespace creates a namespace if it does not exist, and returns its name in the spelling with which it was
// created. The namespace cannot be deleted until the transaction ends.
func (t *tx) lockNamespace(ctx context.Context, name string) (string, error) {
	for {
		var own string
		err := t.one(ctx, []any{&own}, "SELECT name FROM namespaces WHERE folded = $1{share}", fold(name))
		if !errors.Is(err, sql.ErrNoRows) {
			return own, err
		}
		if _, err := t.addNamespace(ctx, Namespace{Name: name}); err != nil {
			return "", err
		}
		// Another transaction may have deleted the namespace before the lock was taken, so it is created and looked up
		// again.
	}
}

// Size returns the total size in bytes of two kinds of packs of this namespace: own are packs that only repositories of
// this namespace list, and shared are packs that repositories of other namespaces also list. A pack of several
// repositories is counted once.
func (n *Namespaces) Size(ctx context.Context, name string) (own, shared int64, err error) {
	err = n.db.single(ctx, "measure namespace "+name, func(t *tx) error {
		return t.one(ctx, []any{&own, &shared}, `SELECT
			CAST(COALESCE(SUM(CASE WHEN s.others THEN 0 ELSE s.bytes END), 0) AS BIGINT),
			CAST(COALESCE(SUM(CASE WHEN s.others THEN s.bytes ELSE 0 END), 0) AS BIGINT)
			FROM (SELECT p.bytes, EXISTS (SELECT 1 FROM links o JOIN repos q ON q.repo = o.repo
					WHERE o.pack = p.pack AND q.namespace_folded <> $1) AS others
				FROM packs p WHERE p.pack IN (SELECT l.pack FROM repos r JOIN links l ON l.repo = r.repo
					WHERE r.namespace_folded = $1 AND r.deleted = 0)) s`, fold(name))
	})
	return own, shared, err
}

// Amounts has the numbers of repositories, sessions and bytes, among others, that a namespace stores.
type Amounts struct {
	Bytes int64 // size of packs and archived sessions; a pack of several repositories is counted once
	Repos int64
	Refs  int64
}

// Amounts counts what a namespace stores. The time grows with the number of its packs and refs.
func (n *Namespaces) Amounts(ctx context.Context, name string) (a Amounts, err error) {
	const of = "(SELECT repo FROM repos WHERE namespace_folded = $1 AND deleted = 0)"
	err = n.db.read(ctx, "measure namespace "+name, func(t *tx) error {
		for _, part := range []struct {
			sum   *int64
			query string
		}{
			{&a.Repos, "SELECT count(*) FROM repos WHERE namespace_folded = $1 AND deleted = 0"},
			{&a.Bytes,
				"SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM packs WHERE pack IN (SELECT pack FROM links WHERE repo IN " +
					of + ")"},
			{&a.Bytes, "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM archives WHERE repo IN " + of},
			{&a.Refs, "SELECT count(*) FROM refs WHERE length(id) > 0 AND repo IN " + of},
			{&a.Refs,
				`SELECT CAST(COALESCE(SUM(r.n * (SELECT count(*) FROM refs s WHERE s.repo = -r.shared)), 0) AS BIGINT) FROM (SELECT shared,
				count(*) AS n FROM repos WHERE namespace_folded = $1 AND deleted = 0 AND shared <> 0 GROUP BY shared) r`},
		} {
			n, err := t.count(ctx, part.query, fold(name))
			if err != nil {
				return err
			}
			*part.sum += n
		}
		// Subtract the rows that hide a ref of a shared set, because the refs of the set were counted above.
		hidden, err := t.count(ctx, `SELECT count(*) FROM repos r JOIN refs o ON o.repo = r.repo
		JOIN refs s ON s.repo = -r.shared AND s.name = o.name
			WHERE r.namespace_folded = $1 AND r.deleted = 0 AND r.shared <> 0`, fold(name))
		a.Refs -= hidden
		return err
	})
	return a, err
}
