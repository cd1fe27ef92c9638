package ui

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
)

const (
	sessionsPage = 50
	branchesPage = 100
	maxMeta      = 1 << 20 // bytes of session.json, and of the list of its transitions
)

// overviewPage shows a repository.
type overviewPage struct {
	frame
	Repo     records.Repo
	Path     string
	Commands []command
	Sessions []sessionRow
	Total    int // number of sessions
	Next     string
	Branches []branchRow
	MoreRefs int // branches that are not shown
}

// command is a command that the user can copy.
type command struct{ What, Text string }

// sessionRow is a session in a list.
type sessionRow struct {
	Name, Path  string
	State       session.LifeState // "" if the description of the session cannot be read
	Branch      string
	Actor       string
	From        string // "SESSION CHECKPOINT" of the parent, "" for none
	Began       time.Time
	Newest      time.Time // time of the newest checkpoint; zero if there is none
	Checkpoints string
}

type branchRow struct {
	Name, Tree, Diff string
	ID               string
	Default          bool
}

// overview shows the sessions and the branches of a repository.
func (p *place) overview(ctx context.Context) error {
	refs, err := p.refs(ctx)
	if err != nil {
		return err
	}
	page := overviewPage{frame: p.frame(p.repo.Name, p.above()...), Repo: p.repo, Path: p.path}
	page.Repo.Description = shown(page.Repo.Description)
	page.Commands = []command{{"Mount", "artifactfs mount " + control.ShellWord(p.remote()) + " DIR"},
		{"Clone", "git clone " + control.ShellWord(p.remote())}}
	p.branches(refs, &page)
	first, err := strconv.Atoi(cmp.Or(p.r.FormValue("from"), "0"))
	if err != nil || first < 0 {
		return missing("The list has no such page.")
	}
	err = p.read(ctx, func(g gitread.Repo) error { return p.sessions(ctx, g, refs, first, &page) })
	if err != nil {
		return err
	}
	return p.send(http.StatusOK, "overview.html", page)
}

// above returns the links to the pages above that of the repository, as far as the token allows them.
func (p *place) above() []crumb {
	if p.token.Role == records.RepoToken {
		return nil
	}
	return []crumb{{p.repo.Namespace, Prefix + p.repo.Namespace}}
}

// within returns the links to the pages above one within the repository.
func (p *place) within() []crumb { return append(p.above(), crumb{p.repo.Name, p.path}) }

// branches adds the branches. Those of sessions are last, because there can be many.
func (p *place) branches(refs map[string]string, page *overviewPage) {
	var names []string
	for name := range refs {
		if short, ok := strings.CutPrefix(name, "refs/heads/"); ok {
			names = append(names, short)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(order(b == p.repo.DefaultBranch, a == p.repo.DefaultBranch),
			order(strings.HasPrefix(a, "afs/"), strings.HasPrefix(b, "afs/")), strings.Compare(a, b))
	})
	page.MoreRefs = max(0, len(names)-branchesPage)
	for _, name := range names[:len(names)-page.MoreRefs] {
		row := branchRow{Name: shown(name), Tree: p.treePath(name, ""), ID: refs["refs/heads/"+name], Default: name == p.repo.DefaultBranch}
		if !row.Default {
			row.Diff = p.path + "/diff" + query("a", p.repo.DefaultBranch, "b", name)
		}
		page.Branches = append(page.Branches, row)
	}
}

// order compares two truth values; false comes first.
func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// treePath returns the path of the page of a file or directory at a point.
func (p *place) treePath(point, path string) string {
	to := p.path + "/tree/" + url.PathEscape(point)
	if path != "" {
		to += "/" + escapedPath(path)
	}
	return to
}

// sessions adds a page of the list of sessions, those with the newest checkpoints first.
func (p *place) sessions(ctx context.Context, g gitread.Repo, refs map[string]string, first int, page *overviewPage) error {
	newest, err := g.Newest(ctx, refs)
	if err != nil {
		return err
	}
	prefix := session.MetaRef("")
	var names []string
	for _, ref := range slices.Sorted(maps.Keys(refs)) {
		if name, ok := strings.CutPrefix(ref, prefix); ok && session.ValidName(name) == nil {
			names = append(names, name)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return strings.Compare(newest[b].ID, newest[a].ID) })
	page.Total = len(names)
	names = names[min(first, len(names)):]
	if len(names) > sessionsPage {
		names = names[:sessionsPage]
		page.Next = p.path + query("from", strconv.Itoa(first+sessionsPage))
	}
	metas, err := readMetas(ctx, g, refs, names)
	if err != nil {
		return err
	}
	began := p.u.o.Now()
	for _, m := range metas {
		if m == nil {
			began = time.Time{}
		} else if m.Began.Before(began) {
			began = m.Began
		}
	}
	counts, more, err := g.CountCheckpoints(ctx, refs, names, began)
	if err != nil {
		return err
	}
	for i, name := range names {
		row := sessionRow{Name: name, Path: p.sessionPath(name)}
		if row.Checkpoints = thousands(counts[name]); isThin(refs, name) {
			row.Checkpoints = "thin"
		} else if more {
			row.Checkpoints += " or more"
		}
		if id := newest[name].ID; id != "" {
			row.Newest = session.CheckpointID(id).Time()
		}
		if m := metas[i]; m != nil {
			row.State, row.Branch, row.Began, row.From = m.State, shown(strings.TrimPrefix(m.Ref, "refs/heads/")), m.Began, shown(m.From)
			row.Actor = actorOf(*m)
		}
		page.Sessions = append(page.Sessions, row)
	}
	return nil
}

// actorOf returns the user who has changed the state of a session last.
func actorOf(m session.Meta) string {
	if len(m.Transitions) == 0 {
		return ""
	}
	return clip(m.Transitions[len(m.Transitions)-1].Actor, 80)
}

// sessionPath returns the path of the page of a session.
func (p *place) sessionPath(name string) string { return p.path + "/s/" + url.PathEscape(name) }

// readMetas returns the metadata of sessions. An element is nil if it cannot be read, because it is missing or from a later version.
func readMetas(ctx context.Context, g gitread.Repo, refs map[string]string, names []string) ([]*session.Meta, error) {
	var objects []string
	for _, name := range names {
		commit := refs[session.MetaRef(name)]
		objects = append(objects, commit+":session.json", commit+":transitions.jsonl")
	}
	metas := make([]*session.Meta, len(names))
	var text []byte
	err := g.Contents(ctx, objects, maxMeta, func(i int, c gitread.Content) {
		if i%2 == 0 {
			text = c.Bytes
			return
		}
		if m, err := session.ParseMeta(text, c.Bytes); err == nil && m.Session == names[i/2] {
			metas[i/2] = &m
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read sessions: %w", err)
	}
	return metas, nil
}
