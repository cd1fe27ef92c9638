package api

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/server/archive"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
)

const (
	archivedLimit = 50
	archivedMax   = 1000
	archiveMost   = 100 // maximum number of sessions that one request can archive
)

// archivedSession describes an archived session.
type archivedSession struct {
	Session  string   `json:"session"`
	State    string   `json:"state"` // always "archived"
	Title    string   `json:"title"`
	Owner    string   `json:"owner"`
	Tags     []string `json:"tags"`
	Bytes    int64    `json:"bytes"`
	Changed  *string  `json:"changed_at"`
	Archived *string  `json:"archived_at"`
}

// listArchived lists the archived sessions of a repository in the order of their names. The cursor is the last name of
// the previous page.
func listArchived(c *call) error {
	q := c.query()
	after, limit := q.text("cursor"), q.number("limit", archivedLimit, 1, archivedMax)
	if err := q.err(); err != nil {
		return err
	}
	ctx, cancel := c.context()
	defer cancel()
	r, err := c.repo()
	if err != nil {
		return err
	}
	rows, err := c.a.o.Records.Archives.List(ctx, r.ID, after, limit+1)
	if err != nil {
		return err
	}
	next := ""
	if len(rows) > limit {
		rows = rows[:limit]
		next = rows[limit-1].Session
	}
	list := []archivedSession{}
	for _, row := range rows {
		i := archive.InfoOf(row)
		s := archivedSession{Session: row.Session, State: string(session.Archived), Title: i.Title,
			Owner: i.Owner, Tags: i.Tags,
			Bytes: row.Pack.Bytes, Changed: optionalTime(row.Changed), Archived: optionalTime(row.Archived)}
		if s.Tags == nil {
			s.Tags = []string{}
		}
		list = append(list, s)
	}
	return c.send(http.StatusOK, list, cursorInfo{next, limit, len(list)})
}

// byOf returns the caller as the user who changes sessions, with a reason.
func byOf(c *call, reason string) archive.By {
	by := archive.By{Cause: c.cause(), Stamp: c.stamp(), Reason: reason}
	if by.Actor = c.token.Actor; by.Actor == "" {
		by.Actor = "token:" + c.token.ID
	}
	return by
}

// archiveSessions archives sessions.
func archiveSessions(c *call) error {
	in, err := c.body()
	if err != nil {
		return err
	}
	var names []string
	if text := in.in["sessions"]; text != nil && json.Unmarshal(text, &names) != nil || len(names) == 0 ||
		len(names) > archiveMost {
		in.refuse(invalid("sessions", "Invalid input: expected an array of 1 to %d names", archiveMost))
	}
	for _, name := range names {
		if session.ValidName(name) != nil {
			in.refuse(invalid("sessions", "Invalid name of a session: %.140q", name))
		}
	}
	if err := in.err(); err != nil {
		return err
	}
	r, err := c.ready()
	if err != nil {
		return err
	}
	ctx, leave, err := placed(c, r)
	if err != nil {
		return err
	}
	defer leave()
	results, err := c.a.o.Archiver.Archive(ctx, r.ID, names, byOf(c, ""))
	// the request gets an audit entry in any case, because some of its sessions may have been refused
	c.recorded = false
	if err != nil {
		return sessionFault(err)
	}
	type failure struct {
		Session string `json:"session"`
		Error   string `json:"error"`
	}
	answer := struct {
		Archived []string  `json:"archived"`
		Failed   []failure `json:"failed"`
	}{[]string{}, []failure{}}
	for i, name := range names {
		switch err := sessionFault(results[i]); {
		case err == nil:
			answer.Archived = append(answer.Archived, name)
		case len(names) == 1:
			return err
		default:
			f, _ := faultOf(err)
			answer.Failed = append(answer.Failed, failure{name, f.Message})
		}
	}
	return c.send(http.StatusOK, answer, nil)
}

// reopenSession restores an archived session to its repository.
func reopenSession(c *call) error {
	in, err := c.body()
	if err != nil {
		return err
	}
	reason := in.text("reason")
	if err := in.err(); err != nil {
		return err
	}
	r, err := c.ready()
	if err != nil {
		return err
	}
	name := c.params["session"]
	ctx, leave, err := placed(c, r)
	if err != nil {
		return err
	}
	defer leave()
	if err := c.a.o.Archiver.Reopen(ctx, r.ID, name, byOf(c, reason)); err != nil {
		return sessionFault(err)
	}
	return c.send(http.StatusOK, struct {
		Session string `json:"session"`
	}{name}, nil)
}

// sessionFault returns the fault for an error of package archive.
func sessionFault(err error) error {
	var refused *archive.Refused
	var held *profile.OnHoldError
	switch {
	case errors.As(err, &refused):
		return exists("%s", refused.Error())
	case errors.As(err, &held):
		return exists("%s", held.Error())
	case errors.Is(err, archive.ErrThin):
		return exists("%s", archive.ErrThin.Error())
	case errors.Is(err, records.ErrExists):
		return exists("A session of this name exists")
	case errors.Is(err, records.ErrChanged), errors.Is(err, records.ErrCollected):
		return exists("The session was changed at the same time, try again")
	}
	return found("Session", err)
}
