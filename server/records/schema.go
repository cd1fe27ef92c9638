package records

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// migrations are the steps from each version of the schema to the next. The version of a schema is the number of its
// steps. A released step is never changed. A node of the previous version must be able to work with a schema that a
// newer node has upgraded.
//
// Types: {key} is a number that the database assigns, {bytes} is a string of bytes, {folded} is a text that is compared
// by its bytes, and {numbered} is the number seq of an entry of the log (see tx.log). Times are microseconds since
// 1970; 0 means no time. Ids of objects and names of refs are bytes, because names of refs need not be UTF-8, and
// because bytes are compared without a collation. Names that are unique without regard to case have a second column,
// folded, with the name in lower case.
var migrations = []string{`
CREATE TABLE settings (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE namespaces (
	folded {folded} NOT NULL PRIMARY KEY,
	name TEXT NOT NULL,
	jurisdiction TEXT NOT NULL,
	created BIGINT NOT NULL,
	updated BIGINT NOT NULL
);
CREATE TABLE repos (
	repo {key},
	id TEXT NOT NULL,
	namespace TEXT NOT NULL,
	name TEXT NOT NULL,
	namespace_folded {folded} NOT NULL,
	folded {folded} NOT NULL,
	description TEXT NOT NULL,
	default_branch TEXT NOT NULL,
	object_format TEXT NOT NULL,
	read_only BOOLEAN NOT NULL,
	status TEXT NOT NULL,
	source TEXT NOT NULL,
	base_url TEXT NOT NULL,
	base_commit TEXT NOT NULL,
	created BIGINT NOT NULL,
	updated BIGINT NOT NULL,
	last_push BIGINT NOT NULL,
	generation BIGINT NOT NULL,
	collections BIGINT NOT NULL,
	deleted BIGINT NOT NULL
);
CREATE UNIQUE INDEX repos_id ON repos (id);
CREATE UNIQUE INDEX repos_name ON repos (namespace_folded, folded) WHERE deleted = 0;
CREATE INDEX repos_created ON repos (namespace_folded, created) WHERE deleted = 0;
CREATE INDEX repos_deleted ON repos (namespace_folded, folded, deleted) WHERE deleted <> 0;
CREATE TABLE refs (
	repo BIGINT NOT NULL,
	name {bytes} NOT NULL,
	id {bytes} NOT NULL,
	PRIMARY KEY (repo, name)
){clustered};
CREATE TABLE packs (
	pack {key},
	id TEXT NOT NULL,
	hash TEXT NOT NULL,
	extensions TEXT NOT NULL,
	bytes BIGINT NOT NULL,
	objects BIGINT NOT NULL,
	created BIGINT NOT NULL,
	idle_since BIGINT NOT NULL -- since when it may be unused, 0 if it is used, -1 if it is condemned
);
CREATE UNIQUE INDEX packs_id ON packs (id);
CREATE INDEX packs_idle ON packs (idle_since) WHERE idle_since <> 0;
CREATE TABLE links ( -- the list of packs of each repository
	repo BIGINT NOT NULL,
	pack BIGINT NOT NULL,
	PRIMARY KEY (repo, pack)
){clustered};
CREATE INDEX links_pack ON links (pack);
CREATE TABLE tokens (
	id TEXT NOT NULL PRIMARY KEY,
	hash {bytes} NOT NULL,
	role TEXT NOT NULL,
	scope TEXT NOT NULL,
	namespace TEXT NOT NULL,
	repo_id TEXT NOT NULL,
	label TEXT NOT NULL,
	actor TEXT NOT NULL,
	session TEXT NOT NULL,
	rules TEXT NOT NULL,
	created BIGINT NOT NULL,
	expires BIGINT NOT NULL,
	revoked BIGINT NOT NULL
){clustered};
CREATE UNIQUE INDEX tokens_hash ON tokens (hash);
CREATE INDEX tokens_repo ON tokens (repo_id, created);
CREATE INDEX tokens_revoked ON tokens (revoked) WHERE revoked <> 0;
CREATE TABLE counters (name TEXT NOT NULL PRIMARY KEY, value BIGINT NOT NULL);
INSERT INTO counters (name, value) VALUES ('log', 0);
CREATE TABLE events (
	{numbered},
	type TEXT NOT NULL,
	namespace TEXT NOT NULL,
	repo TEXT NOT NULL,
	time BIGINT NOT NULL,
	body {bytes} NOT NULL
){clustered};
CREATE INDEX events_repo ON events (namespace, repo, seq);
CREATE TABLE audit (
	{numbered},
	time BIGINT NOT NULL,
	token TEXT NOT NULL,
	actor TEXT NOT NULL,
	remote TEXT NOT NULL,
	method TEXT NOT NULL,
	target TEXT NOT NULL,
	result BIGINT NOT NULL,
	detail TEXT NOT NULL
){clustered};
CREATE TABLE usage (
	namespace TEXT NOT NULL,
	day TEXT NOT NULL,
	repo_id TEXT NOT NULL,
	operation TEXT NOT NULL,
	count BIGINT NOT NULL,
	bytes BIGINT NOT NULL,
	PRIMARY KEY (namespace, day, repo_id, operation)
){clustered};
CREATE TABLE leases (name TEXT NOT NULL PRIMARY KEY, holder TEXT NOT NULL, expires BIGINT NOT NULL);
CREATE TABLE webhooks (
	id TEXT NOT NULL PRIMARY KEY,
	namespace TEXT NOT NULL,
	repo TEXT NOT NULL,
	types TEXT NOT NULL,
	url TEXT NOT NULL,
	secret TEXT NOT NULL,
	created BIGINT NOT NULL,
	seq BIGINT NOT NULL
);
CREATE TABLE deliveries (
	webhook TEXT NOT NULL,
	seq BIGINT NOT NULL,
	attempts BIGINT NOT NULL,
	next BIGINT NOT NULL,
	dead BOOLEAN NOT NULL,
	error TEXT NOT NULL,
	PRIMARY KEY (webhook, seq)
);
CREATE INDEX deliveries_next ON deliveries (next) WHERE NOT dead;
`, importsSchema, garbageSchema, sharedSchema, largeSchema, runsSchema, stampsSchema, archivesSchema, changesSchema, tokenRefsSchema}

// migrate creates or upgrades the tables. If several processes start at the same time, one of them creates or upgrades
// the tables, and the others wait.
func (db *DB) migrate(ctx context.Context) error {
	const versions = "artifactfs_schema"
	err := db.write(ctx, "read the version of the database's schema", func(t *tx) error {
		if t.dialect.serial != "" {
			if _, err := t.exec(ctx, t.dialect.serial); err != nil {
				return err
			}
		}
		created, err := t.count(ctx, t.dialect.exists, versions)
		if err != nil {
			return err
		}
		version := 0
		if created == 0 {
			tables, err := t.count(ctx, t.dialect.tables)
			if err != nil {
				return err
			}
			if tables != 0 {
				return errors.New("database contains tables of another program: artifactfs needs a separate database, or a separate schema")
			}
			if err := t.script(ctx, "CREATE TABLE "+versions+" (version BIGINT NOT NULL); INSERT INTO "+versions+
				" VALUES (0)"); err != nil {
				return err
			}
		} else {
			n, err := t.count(ctx, "SELECT version FROM "+versions)
			if err != nil {
				return err
			}
			version = int(n)
		}
		if version > len(migrations) {
			return fmt.Errorf("database has version %d of the schema, and this artifactfs knows versions up to %d: use a newer artifactfs",
				version, len(migrations))
		}
		for v := version; v < len(migrations); v++ {
			if err := t.script(ctx, migrations[v]); err != nil {
				return fmt.Errorf("upgrade the schema to version %d: %w", v+1, err)
			}
		}
		if version == len(migrations) {
			return nil
		}
		_, err = t.exec(ctx, "UPDATE "+versions+" SET version = $1", len(migrations))
		return err
	})
	return err
}

// script runs statements that are separated by semicolons.
func (t *tx) script(ctx context.Context, text string) error {
	for _, statement := range strings.Split(t.dialect.types.Replace(text), ";") {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		if _, err := t.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}
