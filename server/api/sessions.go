package api

import (
	"context"
	"encoding/base64"
	"net/http"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/server/meter"
	"github.com/artifactfs/artifactfs/server/review"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/lifecycle"
)

// The routes of sessions also accept tokens of repositories. Package review does the work.

const (
	sessionsLimit    = 50
	sessionsMax      = 200
	checkpointsLimit = 100
	checkpointsMax   = 1000
)

type holdInfo struct {
	Reason string `json:"reason"`
	Actor  string `json:"actor"`
	Since  string `json:"since"`
}

type writerInfo struct {
	Host  string `json:"host"`
	Since string `json:"since"`
}

type sessionInfo struct {
	Name       string       `json:"name"`
	State      string       `json:"state"`
	Title      string       `json:"title"`
	Task       string       `json:"task"`
	Owner      string       `json:"owner"`
	Tags       []string     `json:"tags"`
	Expires    *string      `json:"expires_at"`
	Hold       *holdInfo    `json:"hold,omitempty"`
	Remote     string       `json:"remote"`
	Branch     string       `json:"branch"`
	Base       *string      `json:"base"`
	Began      *string      `json:"began_at"`
	From       *string      `json:"forked_from"`
	CopyOf     string       `json:"copy_of,omitempty"`
	Checkpoint *string      `json:"checkpoint"`
	Thin       bool         `json:"thin"`
	Writers    []writerInfo `json:"writers"`
	Damage     *string      `json:"damage"`
}

func showSession(s review.Session) sessionInfo {
	m := s.Meta
	i := sessionInfo{Name: s.Name, State: string(m.Now(time.Now())), Title: m.Title, Task: m.Task,
		Owner: m.Owner, Tags: m.Tags,
		Expires: optionalTime(m.Expires), Remote: m.Remote, Branch: strings.TrimPrefix(m.Ref, "refs/heads/"),
		Base:  optional(m.Base),
		Began: optionalTime(m.Began), From: optional(m.From), CopyOf: m.CopyOf, Checkpoint: optional(s.Newest), Thin: s.Thin,
		Writers: []writerInfo{}, Damage: optional(s.Damage)}
	if i.Tags == nil {
		i.Tags = []string{}
	}
	if m.Profile.Held() {
		i.Hold = &holdInfo{m.Hold.Reason, m.Hold.By, timeText(m.Hold.Since)}
	}
	for _, l := range m.Lanes {
		if m.Held(l.Name, session.Writer{}, time.Now()) != nil {
			i.Writers = append(i.Writers, writerInfo{l.Writer.Host, timeText(l.Since)})
		}
	}
	return i
}

// after returns the text that continueAfter has put into the cursor.
func (q *query) after() string {
	text, err := base64.RawURLEncoding.DecodeString(q.text("cursor"))
	if err != nil {
		q.refuse(invalid("cursor", "Invalid cursor"))
	}
	return string(text)
}

// continueAfter returns the description of a page whose last element is last. more reports whether further elements
// follow.
func continueAfter(last string, more bool, limit, count int) cursorInfo {
	if !more {
		last = ""
	}
	return cursorInfo{base64.RawURLEncoding.EncodeToString([]byte(last)), limit, count}
}

func listSessions(c *call) error {
	q := c.query()
	after, limit := q.after(), q.number("limit", sessionsLimit, 1, sessionsMax)
	if err := q.err(); err != nil {
		return err
	}
	return look(c, func(ctx context.Context) error {
		all, more, err := c.a.o.Review.Sessions(ctx, by(c), c.of, after, limit)
		if err != nil {
			return err
		}
		list, last := []sessionInfo{}, ""
		for _, s := range all {
			list, last = append(list, showSession(s)), s.Name
		}
		return c.send(http.StatusOK, list, continueAfter(last, more, limit, len(list)))
	})
}

func getSession(c *call) error {
	return look(c, func(ctx context.Context) error { return sendSession(ctx, c) })
}

// sendSession sends the session in the path.
func sendSession(ctx context.Context, c *call) error {
	s, err := c.a.o.Review.Session(ctx, by(c), c.of, c.params["session"])
	if err != nil {
		return err
	}
	return c.send(http.StatusOK, showSession(s), nil)
}

// changeSession changes the state and the profile of a session.
func changeSession(c *call) error {
	in, err := c.body()
	if err != nil {
		return err
	}
	change := lifecycle.Change{Reason: in.text("reason"),
		State: session.LifeState(in.option("state", "", string(session.Open), string(session.Paused), string(session.Closed),
			string(session.Archived)))}
	p := profile.Change{Title: in.given("title"), Task: in.given("task"), Owner: in.given("owner"), Hold: in.given("hold"),
		AddTags: in.texts("add_tags"), DelTags: in.texts("remove_tags")}
	if n := in.number("ttl", -1); n >= 0 {
		p.TTL = new(time.Duration(n) * time.Second)
	} else if n != -1 {
		in.refuse(invalid("ttl", "Too small: expected number to be >=0"))
	}
	if p.Title != nil || p.Task != nil || p.Owner != nil || p.Hold != nil || p.TTL != nil || len(p.AddTags) > 0 ||
		len(p.DelTags) > 0 {
		change.Profile = &p
	} else if change.State == "" {
		in.refuse(&Fault{http.StatusBadRequest, codeInput, "Nothing to change", ""})
	}
	if err := in.err(); err != nil {
		return err
	}
	return look(c, func(ctx context.Context) error {
		if _, err := c.a.o.Review.Change(ctx, by(c), c.of, c.params["session"], change); err != nil {
			return err
		}
		return sendSession(ctx, c)
	})
}

// given returns a string, or nil if the field is missing.
func (f *fields) given(name string) *string {
	var s string
	if !f.value(name, "string", &s) {
		return nil
	}
	return &s
}

func deleteSession(c *call) error {
	return look(c, func(ctx context.Context) error {
		d, err := c.a.o.Review.Delete(ctx, by(c), c.of, c.params["session"])
		if err != nil {
			return err
		}
		return c.send(http.StatusOK, struct {
			Session string   `json:"session"`
			Refs    int      `json:"refs"`
			Kept    []string `json:"kept_refs"`
		}{c.params["session"], d.Refs, d.Kept}, nil)
	})
}

type checkpointInfo struct {
	ID      string   `json:"id"`
	Commit  string   `json:"commit"`
	Tree    string   `json:"tree"`
	Head    *string  `json:"head"`
	Branch  string   `json:"branch"`
	Made    string   `json:"made_at"`
	Reason  string   `json:"reason"`
	Message string   `json:"message"`
	Changed int64    `json:"changed"`
	Bytes   int64    `json:"bytes"`
	Pins    []string `json:"pins"`
}

func listCheckpoints(c *call) error {
	q := c.query()
	before, limit := q.after(), q.number("limit", checkpointsLimit, 1, checkpointsMax)
	if err := q.err(); err != nil {
		return err
	}
	return look(c, func(ctx context.Context) error {
		all, more, err := c.a.o.Review.Checkpoints(ctx, by(c), c.of, c.params["session"], before, limit)
		if err != nil {
			return err
		}
		list, last := []checkpointInfo{}, ""
		for _, p := range all {
			i := checkpointInfo{ID: string(p.ID), Commit: p.Commit.String(), Tree: p.Tree.String(), Made: timeText(p.Time),
				Branch: strings.TrimPrefix(p.Branch, "refs/heads/"), Reason: string(p.Reason), Message: p.Message,
				Changed: p.Changed, Bytes: p.Bytes,
				Pins: p.Pins}
			if !p.Head.IsZero() {
				i.Head = optional(p.Head.String())
			}
			if i.Pins == nil {
				i.Pins = []string{}
			}
			list, last = append(list, i), i.ID
		}
		return c.send(http.StatusOK, list, continueAfter(last, more, limit, len(list)))
	})
}

func setPin(c *call) error {
	in, err := c.body()
	if err != nil {
		return err
	}
	checkpoint := in.text("checkpoint")
	if err := in.err(); err != nil {
		return err
	}
	return look(c, func(ctx context.Context) error {
		id, err := c.a.o.Review.Pin(ctx, by(c), c.of, c.params["session"], c.params["pin"], checkpoint)
		if err != nil {
			return err
		}
		return c.send(http.StatusOK, pinInfo{c.params["pin"], id}, nil)
	})
}

type pinInfo struct {
	Name       string `json:"name"`
	Checkpoint string `json:"checkpoint"`
}

func removePin(c *call) error {
	return look(c, func(ctx context.Context) error {
		if err := c.a.o.Review.Unpin(ctx, by(c), c.of, c.params["session"], c.params["pin"]); err != nil {
			return err
		}
		return c.empty(http.StatusNoContent)
	})
}

// look calls the function do, which reads or changes the repository in the path.
func look(c *call, do func(ctx context.Context) error) error {
	if err := unfinished(c.of); err != nil {
		return err
	}
	ctx, cancel := c.context()
	defer cancel()
	c.count(c.of, meter.Read, 0)
	return do(ctx)
}

// by returns the caller as the user of an act. The transaction of the act writes the audit entry of the call.
func by(c *call) review.By {
	return review.By{Token: c.token, Cause: c.who(), Done: func() { c.recorded = true }}
}
