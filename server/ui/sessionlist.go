package ui

import (
	"bytes"
	"context"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/transcript"
)

const (
	maxLatest  = 256 << 10 // maximum size, in bytes, of the file of records whose last record is shown in a list
	latestText = 120       // maximum number of characters of that record
)

// sessionRow is a session in a list.
type sessionRow struct {
	Name, Path string
	profileView
	State       session.LifeState // state of the session; "" if its metadata cannot be read
	Branch      string
	Began       time.Time
	Checkpoints string
	Changed     string // number of files that differ from the base, as text; "" if it is not known
	Now         entry  // newest checkpoint or record of the session
	Problem     string // part of the session that cannot be read; "" if everything can be read
}

// sessionList reads a page of the list of sessions, those with the newest checkpoints first. The amount of data that it
// reads of a session does not depend on the size or the age of the session, except for the number of checkpoints.
type sessionList struct {
	*place
	g     gitread.Repo
	refs  map[string]string
	total int
	rows  []sessionRow

	names  []string // names of the sessions on the page
	newest map[string]gitread.Point
	metas  []*session.Meta
}

// load reads the page that begins with the session whose index is first.
func (l *sessionList) load(ctx context.Context, first int) (err error) {
	if l.newest, err = l.g.Newest(ctx, l.refs); err != nil {
		return err
	}
	prefix := session.MetaRef("")
	var names []string
	for _, ref := range slices.Sorted(maps.Keys(l.refs)) {
		if name, ok := strings.CutPrefix(ref, prefix); ok && session.ValidName(name) == nil {
			names = append(names, name)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return strings.Compare(l.newest[b].ID, l.newest[a].ID) })
	l.total = len(names)
	l.names = names[min(first, len(names)):min(first+sessionsPage, len(names))]
	if l.metas, err = l.g.Metas(ctx, l.refs, l.names); err != nil {
		return err
	}
	l.rows = make([]sessionRow, len(l.names))
	for i, name := range l.names {
		l.rows[i] = sessionRow{Name: name, Path: l.sessionPath(name)}
		if m := l.metas[i]; m != nil {
			r := &l.rows[i]
			r.profileView, r.State, r.Branch, r.Began = l.profile(l.refs, *m), m.State,
				shown(strings.TrimPrefix(m.Ref, "refs/heads/")), m.Began
			r.Owner = firstOf(r.Owner, actorOf(*m))
		}
	}
	if err := l.count(ctx); err != nil {
		return err
	}
	if err := l.readNewest(ctx); err != nil {
		return err
	}
	return l.readLatest(ctx)
}

// count adds the number of checkpoints to each session.
func (l *sessionList) count(ctx context.Context) error {
	began := l.u.o.Now()
	for _, m := range l.metas {
		if m == nil {
			began = time.Time{}
		} else if m.Began.Before(began) {
			began = m.Began
		}
	}
	counts, more, err := l.g.CountCheckpoints(ctx, l.refs, l.names, began)
	for i, name := range l.names {
		if err != nil { // an error is possible for one session, for example if git cannot read its commit
			var failed error
			if counts, more, failed = l.g.CountCheckpoints(ctx, l.refs, []string{name}, began); failed != nil {
				if ctx.Err() != nil {
					return failed
				}
				l.unread(i, "checkpoints", failed)
				continue
			}
		}
		text := &l.rows[i].Checkpoints
		if *text = thousands(counts[name]); l.thin[name] != "" {
			*text = "thin"
		} else if more {
			*text += " or more"
		}
	}
	return nil
}

// readNewest adds to each session its newest checkpoint, and the number of files that differ between that checkpoint
// and the base.
func (l *sessionList) readNewest(ctx context.Context) error {
	var commits []string
	for i, name := range l.names {
		base := ""
		if m := l.metas[i]; m != nil {
			base = m.Base
		}
		commits = append(commits, l.newest[name].Commit, base) // a commit "" is not read
	}
	trees := make([]string, len(commits))
	err := l.g.Contents(ctx, commits, maxCommit, func(i int, c read.Content) {
		if info, ok := c.Commit(); ok {
			trees[i] = info.Tree.String()
		}
		if i%2 == 1 {
			return
		}
		if p, err := gitread.CheckpointOf(c); err == nil {
			l.rows[i/2].Now = entry{Kind: "checkpoint", ID: string(p.ID), Time: p.ID.Time(), Label: clip(string(p.Reason), 40),
				Text: clip(p.Message, latestText)}
		}
	})
	if err != nil {
		return err
	}
	var pairs [][2]string
	var of []int
	for i := range l.rows {
		if tree, base := trees[2*i], trees[2*i+1]; tree != "" && base != "" {
			pairs, of = append(pairs, [2]string{base, tree}), append(of, i)
		}
	}
	counts, err := l.g.CountPaths(ctx, pairs)
	if err != nil {
		counts = nil
		for i, pair := range pairs {
			one, failed := l.g.CountPaths(ctx, [][2]string{pair})
			if failed != nil {
				if ctx.Err() != nil {
					return failed
				}
				l.unread(of[i], "changes", failed)
				one = []int{-1}
			}
			counts = append(counts, one...)
		}
	}
	for i, n := range counts {
		if n >= 0 {
			l.rows[of[i]].Changed = number(n, "file", "files")
		}
	}
	return nil
}

// unread records that a part of the session i cannot be read, so that the page still shows the other sessions.
func (l *sessionList) unread(i int, what string, err error) {
	l.u.o.Log.Info("read session for list", zap.String("session", l.names[i]), zap.String("part", what), zap.Error(err))
	l.rows[i].Problem = "its " + what + " cannot be read"
}

// readLatest adds to each session its newest record, if that is newer than the newest checkpoint. The files of records
// are named DAY/CHECKPOINT.jsonl, so the last name is that of the newest file.
func (l *sessionList) readLatest(ctx context.Context) error {
	var names []string
	var of []int
	for i, name := range l.names {
		commit := l.refs[session.TranscriptRef(name)]
		if commit == "" {
			continue
		}
		day, err := l.last(ctx, commit, "")
		file := ""
		if err == nil {
			file, err = l.last(ctx, commit, day)
		}
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			l.unread(i, "records", err)
			continue
		}
		names, of = append(names, commit+":"+path.Join(day, file)), append(of, i)
	}
	return l.g.Contents(ctx, names, maxLatest, func(i int, c read.Content) {
		text := bytes.TrimSpace(c.Bytes)
		record, err := transcript.ParseLine(text[bytes.LastIndexByte(text, '\n')+1:])
		if err != nil {
			return
		}
		if e := recordOf(record); e.Time.After(l.rows[of[i]].Now.Time) {
			e.Text = clip(e.Text, latestText)
			l.rows[of[i]].Now = e
		}
	})
}

// last returns the name of the last entry of a directory in a commit, or "" if there is none.
func (l *sessionList) last(ctx context.Context, commit, dir string) (string, error) {
	o, err := l.g.Stat(ctx, commit, dir)
	if err != nil || o.Type != "tree" {
		return "", err
	}
	name := ""
	err = l.g.Entries(ctx, o.ID, func(e read.Entry) bool { name = e.Name; return true })
	return name, err
}
