package ui

import (
	"context"
	"net/http"

	"github.com/artifactfs/artifactfs/session"
)

// maxAct is the maximum size in bytes of a form with an act: a text, escaped, and a few names.
const maxAct = 256 << 10

// act answers a form about a session. Its path is that of the session and the name of the form.
func (p *place) act(ctx context.Context, name, form string) error {
	refs, err := p.refs(ctx)
	if err != nil {
		return err
	}
	if session.ValidName(name) != nil || refs[session.MetaRef(name)] == "" {
		return missing("The repository has no session with this name.")
	}
	switch form {
	case "command":
		return p.tokenCommand(ctx, refs, name)
	}
	return p.notAllowed()
}

// notAllowed answers a form that is sent to a page.
func (v *visit) notAllowed() error {
	v.w.Header().Set("Allow", "GET, HEAD")
	return &Problem{http.StatusMethodNotAllowed, "Not allowed", "This page does not receive forms."}
}
