package ui

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
)

const (
	sessionsPage = 50
	branchesPage = 100
)

// overviewPage shows a repository.
type overviewPage struct {
	frame
	Repo     records.Repo
	Path     string
	Commands []command
	Sessions []sessionRow
	Total    int // number of all sessions
	Before   string
	Next     string
	Pages    string // range of sessions on the page, such as "51 to 100"; "" if there is only one page
	Archived string // path of the list of archived sessions; "" if there are none
	Branches []branchRow
	MoreRefs int // number of branches that are not shown
}

// command is a command that the user can copy.
type command struct{ What, Text string }

type branchRow struct {
	Name, Tree, Diff string
	ID               string
	Default          bool
}

// overview shows the sessions and the branches of a repository.
func (p *place) overview(ctx context.Context) error {
	page := overviewPage{frame: p.frame(p.repo.Name, p.above()...), Repo: p.repo, Path: p.path}
	page.Repo.Description = shown(page.Repo.Description)
	if remote := p.remote(); remote != "" {
		page.Commands = []command{{"Mount", "artifactfs mount " + control.ShellWord(remote) + " DIR"},
			{"Clone", "git clone " + control.ShellWord(remote)}}
	}
	first, err := strconv.Atoi(cmp.Or(p.r.FormValue("from"), "0"))
	if err != nil || first < 0 {
		return missing("The list has no such page.")
	}
	list := &sessionList{place: p}
	err = p.readRefs(ctx, func(g gitread.Repo, refs map[string]string) error {
		p.branches(refs, &page)
		list.g, list.refs = g, refs
		return list.load(ctx, first)
	})
	if err != nil {
		return err
	}
	page.Sessions, page.Total = list.rows, list.total
	if first > 0 {
		page.Before = p.path + query("from", strconv.Itoa(max(0, first-sessionsPage)))
	}
	if first+sessionsPage < page.Total {
		page.Next = p.path + query("from", strconv.Itoa(first+sessionsPage))
	}
	if page.Before != "" || page.Next != "" {
		page.Pages = thousands(first+1) + " to " + thousands(first+len(page.Sessions))
	}
	if p.u.o.Archives != nil {
		some, err := p.u.o.Archives.List(ctx, p.repo.ID, "", 1)
		if err != nil {
			return err
		}
		if len(some) > 0 {
			page.Archived = p.path + "/archived"
		}
	}
	return p.send(http.StatusOK, "overview.html", page)
}

// above returns the links to the pages above that of the repository, as far as the token allows the user to see them.
func (p *place) above() []crumb {
	if p.token.Role == records.RepoToken {
		return nil
	}
	return []crumb{{p.repo.Namespace, Prefix + p.repo.Namespace}}
}

// within returns the links that a page of the repository shows to the pages above it.
func (p *place) within() []crumb { return append(p.above(), crumb{p.repo.Name, p.path}) }

// branches adds the branches to the page. Branches of sessions are last, because there can be many.
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
		row := branchRow{Name: shown(name), Tree: p.treePath(name, ""), ID: refs["refs/heads/"+name],
			Default: name == p.repo.DefaultBranch}
		if !row.Default {
			row.Diff = p.path + "/diff" + query("a", p.repo.DefaultBranch, "b", name)
		}
		page.Branches = append(page.Branches, row)
	}
}

// order compares two booleans; false comes first.
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

// actorOf returns the user who has last changed the state of a session.
func actorOf(m session.Meta) string {
	if len(m.Transitions) == 0 {
		return ""
	}
	return clip(m.Transitions[len(m.Transitions)-1].Actor, 80)
}

// sessionPath returns the path of the page of a session.
func (p *place) sessionPath(name string) string { return p.path + "/s/" + url.PathEscape(name) }
