package records

import (
	"context"
	"strings"
	"time"
)

// Webhooks stores the webhooks and the deliveries that have not succeeded yet.
type Webhooks struct{ db *DB }

// Webhook sends events to a URL.
type Webhook struct {
	ID        string
	Namespace string // namespace whose events are sent; "" for all
	Repo      string // repository whose events are sent; "" for all repositories of the namespace
	Types     []string
	URL       string
	Secret    string // key with which deliveries are signed
	Created   time.Time
	Seq       int64 // number of the last event for which Plan has created deliveries
}

// Delivery is the delivery of one event to one webhook.
type Delivery struct {
	Webhook  string
	Event    Event
	Attempts int
	Next     time.Time // time of the next attempt
	Dead     bool      // whether the delivery was given up, so that no further attempts are made
	Error    string    // error of the last attempt
}

const webhookColumns = "id, namespace, repo, types, url, secret, created, seq"

func scanWebhook(row scanner) (h Webhook, err error) {
	var types string
	err = row.Scan(&h.ID, &h.Namespace, &h.Repo, &types, &h.URL, &h.Secret, stamp{&h.Created}, &h.Seq)
	h.Types = strings.Fields(types)
	return h, err
}

// Create creates a webhook. It receives the events that are added after the call.
func (w *Webhooks) Create(ctx context.Context, h Webhook, cause Cause) error {
	if err := w.db.number(ctx); err != nil {
		return err
	}
	return w.db.write(ctx, "create webhook", func(t *tx) error {
		seq, err := t.last(ctx)
		if err != nil {
			return err
		}
		if h.Created.IsZero() {
			h.Created = t.now
		}
		err = orNone(ErrExists)(t.exec(ctx, "INSERT INTO webhooks ("+webhookColumns+") VALUES ("+placeholders(8, 1)+
			") ON CONFLICT (id) DO NOTHING",
			h.ID, h.Namespace, h.Repo, strings.Join(h.Types, " "), h.URL, h.Secret, h.Created, seq))
		if err != nil {
			return err
		}
		return t.log(ctx, nil, cause.entry(t, 201, ""))
	})
}

// List returns the webhooks of a namespace, or all for "", in the order of their creation.
func (w *Webhooks) List(ctx context.Context, namespace string) (hooks []Webhook, err error) {
	query, args := "SELECT "+webhookColumns+" FROM webhooks", []any(nil)
	if namespace != "" {
		query, args = query+" WHERE lower(namespace) = $1", []any{fold(namespace)}
	}
	return readList(ctx, w.db, "list webhooks", scanWebhook, query+" ORDER BY created, id", args...)
}

// Delete removes a webhook with its deliveries.
func (w *Webhooks) Delete(ctx context.Context, id string, cause Cause) error {
	return w.db.write(ctx, "delete webhook "+id, func(t *tx) error {
		if err := orNone(ErrNotFound)(t.exec(ctx, "DELETE FROM webhooks WHERE id = $1", id)); err != nil {
			return err
		}
		if _, err := t.exec(ctx, "DELETE FROM deliveries WHERE webhook = $1", id); err != nil {
			return err
		}
		return t.log(ctx, nil, cause.entry(t, 200, ""))
	})
}

// planned is the maximum number of events that one transaction of Plan examines for each webhook.
const planned = 1000

// Plan creates the deliveries of events that were added since the last call.
func (w *Webhooks) Plan(ctx context.Context) error {
	if err := w.db.number(ctx); err != nil {
		return err
	}
	for {
		// This read avoids a transaction that writes, because most calls find no new events.
		var behind int64
		if err := w.db.single(ctx, "find webhooks with new events", func(t *tx) (err error) {
			behind, err = t.count(ctx, `SELECT count(*) FROM webhooks h, counters c WHERE c.name = 'log' AND h.seq < c.value`)
			return err
		}); err != nil || behind == 0 {
			return err
		}
		if err := w.db.write(ctx, "plan deliveries", func(t *tx) error { return t.plan(ctx) }); err != nil {
			return err
		}
	}
}

func (t *tx) plan(ctx context.Context) error {
	last, err := t.last(ctx)
	if err != nil {
		return err
	}
	// The lock makes other nodes wait here; they then find that the deliveries exist.
	hooks, err := list(ctx, t, scanWebhook, "SELECT "+webhookColumns+" FROM webhooks WHERE seq < $1 ORDER BY id{update}",
		last)
	if err != nil {
		return err
	}
	for _, h := range hooks {
		// Events get their numbers when they are visible, so all events up to the number last are visible. The bodies
		// are not read, because they can be large.
		events, err := list(ctx, t, func(row scanner) (e Event, err error) {
			err = row.Scan(&e.Seq, &e.Type, &e.Namespace, &e.Repo)
			return e, err
		}, "SELECT e.seq, e.type, e.namespace, e.repo FROM events e WHERE e.seq > $1 AND e.seq <= $2 ORDER BY e.seq LIMIT $3",
			h.Seq, last, planned)
		if err != nil {
			return err
		}
		done := last
		if len(events) == planned {
			done = events[planned-1].Seq
		}
		for _, e := range events {
			if !e.Matches(h.Namespace, h.Repo, h.Types) {
				continue
			}
			if _, err := t.exec(ctx,
				`INSERT INTO deliveries (webhook, seq, attempts, next, dead, error) VALUES ($1, $2, 0, $3, FALSE, '')
				ON CONFLICT DO NOTHING`, h.ID, e.Seq, t.now); err != nil {
				return err
			}
		}
		if _, err := t.exec(ctx, "UPDATE webhooks SET seq = $2 WHERE id = $1", h.ID, done); err != nil {
			return err
		}
	}
	return nil
}

const deliveryColumns = eventColumns + ", d.webhook, d.attempts, d.next, d.dead, d.error"

func scanDelivery(row scanner) (d Delivery, err error) {
	err = row.Scan(append(eventFields(&d.Event), &d.Webhook, &d.Attempts, stamp{&d.Next}, &d.Dead, &d.Error)...)
	return d, err
}

// Shares limits which deliveries Due returns, and how many.
type Shares struct {
	Limit      int      // maximum number of deliveries
	Each       int      // maximum number for each webhook, and for all webhooks of each namespace together
	Hooks      []string // webhooks whose deliveries are not returned, because enough of them are being sent
	Namespaces []string // namespaces whose deliveries are not returned, because enough of them are being sent
}

// condition returns the SQL condition for the deliveries d of webhooks h that are due, with its arguments.
func (s Shares) condition(now time.Time) (where string, args []any) {
	where, args = "NOT d.dead AND d.next <= $1", []any{now}
	for column, names := range map[string][]string{"d.webhook": s.Hooks, "h.namespace": s.Namespaces} {
		if len(names) > 0 {
			where += " AND " + column + " NOT IN (" + placeholders(len(names), len(args)+1) + ")"
		}
		for _, name := range names {
			args = append(args, name)
		}
	}
	return where, args
}

// Due returns deliveries whose next attempt is due. It sets their next attempt to now plus hold, so that no other node
// makes the attempt at the same time.
func (w *Webhooks) Due(ctx context.Context, now time.Time, hold time.Duration,
	shares Shares) (due []Delivery, err error) {
	var n int64
	where, args := shares.condition(now)
	if err := w.db.single(ctx, "find due deliveries", func(t *tx) (err error) {
		n, err = t.count(ctx, "SELECT count(*) FROM (SELECT 1 FROM deliveries d JOIN webhooks h ON h.id = d.webhook WHERE "+
			where+
			" LIMIT 1) d", args...)
		return err
	}); err != nil || n == 0 {
		return nil, err
	}
	each, limit := placeholders(1, len(args)+1), placeholders(1, len(args)+2)
	args = append(args, shares.Each, shares.Limit)
	err = w.db.write(ctx, "hold due deliveries", func(t *tx) error {
		due, err = list(ctx, t, scanDelivery, "SELECT "+deliveryColumns+` FROM deliveries d JOIN events e ON e.seq = d.seq
			WHERE NOT d.dead AND d.next <= $1 AND (d.webhook, d.seq) IN (SELECT webhook, seq FROM (SELECT d.webhook, d.seq,
				row_number() OVER (PARTITION BY d.webhook ORDER BY d.next, d.seq) AS of_hook,
				row_number() OVER (PARTITION BY h.namespace ORDER BY d.next, d.seq) AS of_namespace
				FROM deliveries d JOIN webhooks h ON h.id = d.webhook WHERE `+where+`) r
				WHERE of_hook <= `+each+` AND of_namespace <= `+each+`)
			ORDER BY d.next, d.seq LIMIT `+limit+`{skip}`, args...)
		if err != nil {
			return err
		}
		for i, d := range due {
			due[i].Next = now.Add(hold)
			if _, err := t.exec(ctx, "UPDATE deliveries SET next = $3 WHERE webhook = $1 AND seq = $2",
				d.Webhook, d.Event.Seq, due[i].Next); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return due, nil
}

// Done removes a delivery that succeeded.
func (w *Webhooks) Done(ctx context.Context, webhook string, seq int64) error {
	return w.db.write(ctx, "end delivery", func(t *tx) error {
		_, err := t.exec(ctx, "DELETE FROM deliveries WHERE webhook = $1 AND seq = $2", webhook, seq)
		return err
	})
}

// Failed records an attempt that failed. d contains the new values of Attempts, Next, Dead and Error.
func (w *Webhooks) Failed(ctx context.Context, d Delivery) error {
	return w.db.write(ctx, "record failed delivery", func(t *tx) error {
		_, err := t.exec(ctx,
			"UPDATE deliveries SET attempts = $3, next = $4, dead = $5, error = $6 WHERE webhook = $1 AND seq = $2",
			d.Webhook, d.Event.Seq, d.Attempts, d.Next, d.Dead, d.Error)
		return err
	})
}

// Dead returns deliveries that were given up, those of the newest events first.
func (w *Webhooks) Dead(ctx context.Context, webhook string, limit int) ([]Delivery, error) {
	return readList(ctx, w.db, "list dead deliveries", scanDelivery,
		"SELECT "+deliveryColumns+` FROM deliveries d JOIN events e ON e.seq = d.seq
			WHERE d.webhook = $1 AND d.dead ORDER BY d.seq DESC LIMIT $2`, webhook, limit)
}

// Retry makes a delivery that was given up due again, so that it is attempted now. It returns ErrNotFound if there is
// no such delivery.
func (w *Webhooks) Retry(ctx context.Context, webhook string, seq int64, cause Cause) error {
	return w.db.write(ctx, "retry delivery", func(t *tx) error {
		err := orNone(ErrNotFound)(t.exec(ctx, "UPDATE deliveries SET dead = FALSE, attempts = 0, next = $3 "+
			"WHERE webhook = $1 AND seq = $2 AND dead", webhook, seq, t.now))
		if err != nil {
			return err
		}
		return t.log(ctx, nil, cause.entry(t, 202, ""))
	})
}
