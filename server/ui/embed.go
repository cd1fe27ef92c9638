package ui

import (
	"context"
	"html/template"
	"io/fs"
	"net/http"

	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/server/records"
)

// Embedding adapts a UI to a program that is not the server, and that adds its own pages. Each field may be empty.
type Embedding struct {
	// name of the cookie with the token; the name matters because browsers send cookies of one port of a host to its
	// other ports as well
	Cookie string
	Hint   string // text that tells the user where the token can be found
	Assets fs.FS  // further scripts and styles, for pages of the program
	// Remote returns the URL or path by which git uses a repository. "" means that only this host has the repository,
	// and that commands find its sessions by their names.
	Remote func(r records.Repo) string
}

// Page is a page of the program that embeds a UI.
type Page struct {
	Title         string
	Crumbs        []Crumb // links to the pages above the page
	Body          template.HTML
	Script, Style string // names of a script and a style in Embedding.Assets
}

// Crumb is a link to a page above another one.
type Crumb = crumb

// embeddedPage is a Page with the parts that all pages have.
type embeddedPage struct {
	frame
	Body template.HTML
}

// Show answers a request with the page that the function of returns. If the request has no valid token, Show sends the
// page that asks for one.
func (u *UI) Show(w http.ResponseWriter, r *http.Request, of func(ctx context.Context) (Page, error)) {
	v := &visit{u: u, w: w, r: r}
	defer v.note()
	ctx, cancel := context.WithTimeout(r.Context(), answerTime)
	defer cancel()
	if err := v.show(ctx, of); err != nil {
		v.fail(err)
	}
}

func (v *visit) show(ctx context.Context, of func(ctx context.Context) (Page, error)) error {
	if v.r.Method != http.MethodGet && v.r.Method != http.MethodHead {
		return v.notAllowed()
	}
	if err := v.identify(ctx); err != nil {
		return err
	}
	p, err := of(ctx)
	if err != nil {
		return err
	}
	f := v.frame(p.Title, p.Crumbs...)
	f.MoreStyle, f.MoreScript = v.u.paths[p.Style], v.u.paths[p.Script]
	return v.send(http.StatusOK, "embedded.html", embeddedPage{f, p.Body})
}

// SignedIn reports whether a request has a valid token in its cookie.
func (u *UI) SignedIn(r *http.Request) bool {
	v := &visit{u: u, r: r}
	return v.identify(r.Context()) == nil
}

// sessionWord returns the argument by which commands find a session or, if checkpoint is not "", a checkpoint of it.
func (p *place) sessionWord(name, checkpoint string) string {
	link := sessionlink.Link{Remote: p.remote(), Session: name, Checkpoint: checkpoint}
	switch {
	case link.Remote != "":
		return link.String()
	case checkpoint != "":
		return name + "@" + checkpoint
	}
	return name
}

// Count returns a number as text, with separators of thousands.
func Count(n int64) string { return thousands(int(n)) }

// Size returns a number of bytes as text, with a unit.
func Size(n int64) string { return size(n) }
