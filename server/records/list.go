package records

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
)

// RepoQuery selects a page of a list of repositories.
type RepoQuery struct {
	Namespace string
	Search    string // part of the name; case is ignored
	Sort      string // created_at, updated_at, last_push_at or name; "" stands for created_at
	Ascending bool
	Limit     int
	Offset    int    // number of repositories to skip; only used if After is ""
	After     string // cursor that an earlier answer contained
}

// repoOrders are the columns for the orders in which repositories can be listed.
var repoOrders = map[string]string{"created_at": "created", "updated_at": "updated", "last_push_at": "last_push",
	"name": "folded"}

// cursor is a position in a list of repositories: after the last one that the client has received. Clients get it as an
// opaque text.
type cursor struct {
	Sort      string `json:"s"`
	Ascending bool   `json:"a,omitempty"`
	Number    int64  `json:"n,omitempty"` // value of the sort column, if that contains times
	Name      string `json:"t,omitempty"` // value of the sort column, if that contains names in lower case
	Repo      int64  `json:"r"`           // key of the repository in the database
}

func (c cursor) String() string {
	b, _ := json.Marshal(c) // A struct of numbers and texts can always be encoded.
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseCursor returns the cursor for a query. It returns ErrCursor for a text that is not a cursor, and for a cursor of
// a list in another order.
func parseCursor(q RepoQuery) (c cursor, err error) {
	b, err := base64.RawURLEncoding.DecodeString(q.After)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		return cursor{}, fmt.Errorf("%w: %w", ErrCursor, err)
	}
	if c.Sort != q.Sort || c.Ascending != q.Ascending {
		return cursor{}, fmt.Errorf("%w: cursor belongs to a list in another order", ErrCursor)
	}
	return c, nil
}

// value is the value of the column by which the list is sorted.
func (c cursor) value() any {
	if c.Sort == "name" {
		return c.Name
	}
	return c.Number
}

// likeEscape escapes a text for LIKE.
var likeEscape = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

// List returns a page of repositories, the number of repositories on all pages, and the cursor of the next page, which
// is "" on the last page. It returns ErrCursor for a cursor that does not belong to the query.
func (r *Repos) List(ctx context.Context, q RepoQuery) (page []Repo, total int, next string, err error) {
	if q.Sort == "" {
		q.Sort = "created_at"
	}
	column, ok := repoOrders[q.Sort]
	if !ok {
		return nil, 0, "", fmt.Errorf("list repositories: unknown order %q", q.Sort)
	}
	var after cursor
	if q.After != "" {
		if after, err = parseCursor(q); err != nil {
			return nil, 0, "", fmt.Errorf("list repositories: %w", err)
		}
		q.Offset = 0
	}
	where, args := " FROM repos WHERE namespace_folded = $1 AND deleted = 0", []any{fold(q.Namespace)}
	if q.Search != "" {
		where += ` AND folded LIKE $2 ESCAPE '\'`
		args = append(args, "%"+likeEscape.Replace(fold(q.Search))+"%")
	}
	err = r.db.read(ctx, "list repositories", func(t *tx) error {
		all, err := t.count(ctx, "SELECT count(*)"+where, args...)
		if err != nil {
			return err
		}
		total = int(all)
		direction, compare := "DESC", "<"
		if q.Ascending {
			direction, compare = "ASC", ">"
		}
		if q.After != "" {
			where += fmt.Sprintf(" AND (%s, repo) %s ($%d, $%d)", column, compare, len(args)+1, len(args)+2)
			args = append(args, after.value(), after.Repo)
		}
		type keyed struct {
			repo Repo
			key  int64
		}
		// One row more than the limit is read, to find out whether there is a next page.
		rows, err := list(ctx, t, func(row scanner) (k keyed, err error) {
			return k, row.Scan(append(repoFields(&k.repo), &k.key)...)
		}, fmt.Sprintf("SELECT %s, repo%s ORDER BY %s %s, repo %s LIMIT $%d OFFSET $%d", repoColumns, where, column,
			direction, direction,
			len(args)+1, len(args)+2), append(args, q.Limit+1, q.Offset)...)
		if err != nil {
			return err
		}
		if len(rows) > q.Limit {
			rows = rows[:q.Limit]
			if q.Limit > 0 {
				next = cursorAfter(q, rows[q.Limit-1].repo, rows[q.Limit-1].key).String()
			}
		}
		for _, k := range rows {
			page = append(page, k.repo)
		}
		return nil
	})
	return page, total, next, err
}

// cursorAfter returns the cursor of the page that begins after a repository.
func cursorAfter(q RepoQuery, r Repo, key int64) cursor {
	c := cursor{Sort: q.Sort, Ascending: q.Ascending, Repo: key}
	switch q.Sort {
	case "name":
		c.Name = fold(r.Name)
	case "updated_at":
		c.Number = micros(r.Updated)
	case "last_push_at":
		c.Number = micros(r.LastPush)
	default:
		c.Number = micros(r.Created)
	}
	return c
}
