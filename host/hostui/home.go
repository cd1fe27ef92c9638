package hostui

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/server/ui"
)

// homePage is the data of the first page: mounts, sessions, and the session remotes of this host.
type homePage struct {
	Rows    []homeRow
	Remotes []remoteRow
	Notes   []note
}

// note is a message about something that is missing, with a command that the user can run.
type note struct{ Text, Command string }

// homeRow describes a mount, or a session that is not mounted, on the first page.
type homeRow struct {
	Name   string
	Path   string // path of the page of the session; "" if it has no checkpoint yet
	Live   string // path of the live page; "" if the session is not mounted
	State  string
	Dir    string
	Remote string
	Note   string
}

type remoteRow struct{ Name, Path, Dir string }

// home returns the first page of the host.
func (p *Page) home(ctx context.Context) (ui.Page, error) {
	mounts, running, asked := p.o.Mounts(ctx)
	dirs, err := p.repos.list()
	if err != nil {
		return ui.Page{}, err
	}
	page := homePage{}
	switch {
	case asked != nil:
		e := control.AsError(asked)
		page.Notes = append(page.Notes, note{"A daemon does not answer: " + e.Error(), cmp.Or(e.Hint, "artifactfs doctor")})
	case !running:
		page.Notes = append(page.Notes, note{"No daemon is running, so nothing is mounted. A mount starts the daemon:",
			"artifactfs mount URL DIR"})
	}
	byID := map[string]directory{}
	for _, d := range dirs {
		if d.session == "" {
			page.Remotes = append(page.Remotes, remoteRow{d.Name, ui.Prefix + d.Namespace + "/" + url.PathEscape(d.Name), d.ID})
			continue
		}
		byID[d.Name] = d
	}
	for _, m := range mounts {
		row := homeRow{Name: cmp.Or(m.Session.Name, m.ID), State: string(m.State), Dir: m.Dir, Remote: m.Remote,
			Note: m.Error}
		if m.Daemon != nil && m.State != control.StatePreparing {
			row.Live = liveURL(m.Dir, "", false)
		}
		if d, ok := byID[m.ID]; ok {
			row.Path = d.page()
			delete(byID, m.ID)
		}
		page.Rows = append(page.Rows, row)
	}
	for _, d := range byID { // sessions without changes, which the status leaves out
		page.Rows = append(page.Rows, homeRow{Name: d.session, Path: d.page(), State: string(control.StateUnmounted),
			Remote: d.Description})
	}
	slices.SortStableFunc(page.Rows, func(a, b homeRow) int {
		return cmp.Or(-cmp.Compare(min(1, len(a.Live)), min(1, len(b.Live))), strings.Compare(a.Name, b.Name))
	})
	body, err := p.body("home.html", page)
	return ui.Page{Title: "Sessions of this host", Body: body, Style: "live.css"}, err
}

// page returns the URL path of the page of the session.
func (d directory) page() string {
	return ui.Prefix + sessionsSpace + "/" + url.PathEscape(d.Name) + "/s/" + url.PathEscape(d.session)
}

// LivePath returns the URL path of the live page of the mount at the directory mount.
func LivePath(mount string) string { return liveURL(mount, "", false) }

// SessionPath returns the URL path of the page of the session with this name, or false if this host has no checkpoint
// of the session.
func SessionPath(state, session string) (string, bool, error) {
	list, err := (&repositories{state: state}).list()
	for _, d := range list {
		if d.session == session && session != "" {
			return d.page(), true, nil
		}
	}
	return "", false, err
}

// liveURL returns the URL path of the live page that shows the directory path of a mount, by bytes or by files.
func liveURL(mount, path string, bytes bool) string {
	q := url.Values{"mount": {mount}}
	if path != "" {
		q.Set("path", path)
	}
	if bytes {
		q.Set("by", "bytes")
	}
	return livePath + "?" + q.Encode()
}

// mount returns the mount at the directory dir, or an error if no daemon serves a mount there.
func (p *Page) mount(ctx context.Context, dir string) (Mount, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	mounts, _, asked := p.o.Mounts(ctx)
	for _, m := range mounts {
		if m.Dir == dir && m.Daemon != nil {
			return m, nil
		}
	}
	if asked != nil {
		return Mount{}, asked
	}
	return Mount{}, &ui.Problem{Status: http.StatusNotFound, Title: "Not mounted",
		Text: "Nothing is mounted at " + dir + ". The first page lists the mounts."}
}
