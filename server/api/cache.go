package api

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/artifactfs/artifactfs/server/gate"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/cacheentry"
)

const (
	entriesLimit = 1000
	entriesMax   = 5000
)

type entryInfo struct {
	Key     string  `json:"key"`
	Size    int64   `json:"size"`
	Hash    string  `json:"sha256"`
	Stored  string  `json:"stored_at"`
	Expires *string `json:"expires_at"`
	Actor   string  `json:"actor"`
	Session *string `json:"session"`
}

func showEntry(e cacheentry.Entry) entryInfo {
	return entryInfo{e.Key, e.Size, e.Hash, timeText(e.Time), optionalTime(e.Expires), e.Actor, optional(e.Session)}
}

// entries returns the store of the cache entries of the repository in the path.
func entries(c *call) *cacheentry.Store { return c.a.o.Review.Entries(by(c), c.of) }

func listEntries(c *call) error {
	q := c.query()
	prefix, after, limit := q.text("prefix"), q.after(), q.number("limit", entriesLimit, 1, entriesMax)
	if err := q.err(); err != nil {
		return err
	}
	return look(c, func(ctx context.Context) error {
		all, err := entries(c).List(ctx, prefix, false)
		if err != nil {
			return err
		}
		list, last, more := []entryInfo{}, "", false
		for _, e := range all.Entries {
			if e.Key <= after {
				continue
			}
			if more = len(list) == limit; more {
				break
			}
			list, last = append(list, showEntry(e)), e.Key
		}
		return c.send(http.StatusOK, list, continueAfter(last, more, limit, len(list)))
	})
}

func getEntry(c *call) error {
	q := c.query()
	key := q.required("key")
	if err := q.err(); err != nil {
		return err
	}
	return look(c, func(ctx context.Context) error {
		e, err := entries(c).Describe(ctx, key)
		if err != nil {
			return err
		}
		return c.send(http.StatusOK, showEntry(e), nil)
	})
}

// getValue sends the value of a cache entry.
func getValue(c *call) error {
	q := c.query()
	key := q.required("key")
	if err := q.err(); err != nil {
		return err
	}
	return look(c, func(ctx context.Context) error {
		e, value, err := c.a.o.Review.Value(ctx, by(c), c.of, key)
		if err != nil {
			return err
		}
		defer value.Close()
		ctx, stop := c.a.o.Guard.Watch(c.r.Context(), c.token)
		defer stop()
		h := c.w.Header()
		h.Set("Content-Type", bytesType)
		h.Set("Content-Length", strconv.FormatInt(e.Size, 10))
		h.Set("ETag", `"`+e.Hash+`"`)
		h.Set("Cache-Control", "private, no-cache")
		// Browsers must not run values as scripts on the origin of this server, because any client may have stored
		// them.
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
		c.status = http.StatusOK
		if c.r.Method == http.MethodHead {
			return c.empty(http.StatusOK)
		}
		return sendSlowly(ctx, c.w, value, e.Size)
	})
}

// putValue stores the body of the request as the value of a cache entry.
func putValue(c *call) error {
	q := c.query()
	r := cacheentry.PutRequest{Key: q.required("key"), Expect: q.text("expect"),
		Session: cmp.Or(q.text("session"), c.token.Session),
		Actor:   gate.Actor(c.token), TTL: time.Duration(q.number("ttl", 0, 0, 1<<31)) * time.Second}
	if r.Session != "" && session.ValidName(r.Session) != nil {
		q.refuse(invalid("session", "Invalid session name"))
	}
	if err := q.err(); err != nil {
		return err
	}
	if err := errors.Join(cacheentry.ValidKey(r.Key), cacheentry.ValidExpect(r.Expect)); err != nil {
		return err
	}
	ctx, stop := c.a.o.Guard.Watch(c.r.Context(), c.token)
	defer stop()
	if c.r.ContentLength > cacheentry.MaxValue {
		return cacheentry.ErrTooLarge
	}
	place, err := c.a.values.Enter(ctx, places.Small, places.Of(c.of.Namespace, "", "")...)
	if err != nil {
		return err
	}
	c.leave = place.Release // when the request has ended
	value, remove, err := c.a.spool(ctx, c.w, c.r)
	if err != nil {
		return err
	}
	defer remove()
	r.Value = value
	c.r = c.r.WithContext(ctx)
	return look(c, func(ctx context.Context) error {
		e, err := entries(c).Put(ctx, r)
		if err != nil {
			return err
		}
		return c.send(http.StatusOK, showEntry(e), nil)
	})
}

// spool copies the body of a request, which has a place and is not known to be too large, to the disk. The caller calls
// remove when the value is not needed any more.
func (a *API) spool(ctx context.Context, w http.ResponseWriter, r *http.Request) (
	value cacheentry.Value, remove func(), err error,
) {
	size := r.ContentLength
	if size < 0 { // unknown
		size = cacheentry.MaxValue
	}
	body := slowReader{ctx, http.MaxBytesReader(w, r.Body, cacheentry.MaxValue), http.NewResponseController(w),
		time.Now().Add(patience + time.Duration(size/slowBytes)*time.Second)}
	value, remove, err = a.o.Review.Spool(body)
	if err == nil {
		// remove the deadline, which would otherwise cancel the request
		_ = body.control.SetReadDeadline(time.Time{})
	}
	return value, remove, err
}

// slowReader reads a value from a client. There is a time limit for each part; reading also ends at a time for the
// whole value, or after the part in which ctx ends.
type slowReader struct {
	ctx     context.Context
	r       io.Reader
	control *http.ResponseController
	end     time.Time
}

func (s slowReader) Read(p []byte) (int, error) {
	part := time.Now().Add(patience)
	if part.After(s.end) {
		part = s.end
	}
	_ = s.control.SetReadDeadline(part) // an error is ignored, because the writers of tests have no deadlines
	if s.ctx.Err() != nil {
		return 0, context.Cause(s.ctx)
	}
	n, err := s.r.Read(p)
	if big := (*http.MaxBytesError)(nil); errors.As(err, &big) {
		return n, cacheentry.ErrTooLarge
	}
	if err != nil && err != io.EOF {
		err = unreadable()
	}
	return n, err
}

func deleteEntry(c *call) error {
	q := c.query()
	key, expect := q.required("key"), q.text("expect")
	if err := q.err(); err != nil {
		return err
	}
	return look(c, func(ctx context.Context) error {
		if err := entries(c).Delete(ctx, key, expect); err != nil {
			return err
		}
		return c.empty(http.StatusNoContent)
	})
}
