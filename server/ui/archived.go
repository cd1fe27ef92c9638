package ui

import (
	"context"
	"net/http"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/server/archive"
	"github.com/artifactfs/artifactfs/session"
)

// archivedPage lists the archived sessions of a repository by their names.
type archivedPage struct {
	frame
	Rows []archivedRow
	Next string
}

// archivedRow is an archived session, with the command that reopens it.
type archivedRow struct {
	Name, Title, Owner, Size string
	State                    session.LifeState
	Archived, Changed        time.Time
	Command                  string
}

// archived shows a page of the archived sessions: those after the name in the query.
func (p *place) archived(ctx context.Context) error {
	if p.u.o.Archives == nil {
		return missing("There are no archived sessions.")
	}
	list, err := p.u.o.Archives.List(ctx, p.repo.ID, p.r.FormValue("after"), sessionsPage+1)
	if err != nil {
		return err
	}
	page := archivedPage{frame: p.frame("Archived sessions", p.within()...)}
	if len(list) > sessionsPage {
		list = list[:sessionsPage]
		page.Next = p.path + "/archived" + query("after", list[sessionsPage-1].Session)
	}
	for _, a := range list {
		info := archive.InfoOf(a)
		link := sessionlink.Link{Remote: p.remote(), Session: a.Session}
		page.Rows = append(page.Rows, archivedRow{Name: shown(a.Session), Title: clip(info.Title, 200),
			Owner: clip(info.Owner, 80),
			State: info.State, Size: size(a.Pack.Bytes), Archived: a.Archived, Changed: a.Changed,
			Command: "artifactfs session reopen " + control.ShellWord(link.String())})
	}
	return p.send(http.StatusOK, "archived.html", page)
}
