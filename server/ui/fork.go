package ui

import (
	"context"
	"net/http"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/transport/endpoint"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
)

// base returns the URL of the server, without a slash at the end.
func (v *visit) base() string {
	switch {
	case v.u.o.URL != "":
		return v.u.o.URL
	case v.r.TLS != nil:
		return "https://" + v.r.Host
	}
	return "http://" + v.r.Host
}

// remote returns the URL by which git uses the repository. "" means that there is none (see Embedding.Remote).
func (p *place) remote() string {
	if of := p.u.o.Embedding.Remote; of != nil {
		return of(p.repo)
	}
	return p.base() + "/git/" + p.repo.Namespace + "/" + p.repo.Name + ".git"
}

// forkCommand returns the command that forks a session from a checkpoint, or from the newest one if checkpoint is "".
func (p *place) forkCommand(name, checkpoint string) string {
	return "artifactfs session fork " + control.ShellWord(p.sessionWord(name, checkpoint)) + " " +
		control.ShellWord(name+"-fork")
}

// fromHere contains the commands and links of a page that begin at a checkpoint.
type fromHere struct {
	Commands []command
	// path to which the form for a command with the token is submitted; "" if the token is not for one repository
	Token string
	At    string // id of the checkpoint
}

// fromHere returns the commands and links that begin at a checkpoint of a session.
func (p *place) fromHere(name, checkpoint string) *fromHere {
	f := &fromHere{At: checkpoint, Commands: []command{
		{"Fork from here", p.forkCommand(name, checkpoint)},
		{"Restore here", "artifactfs session restore -C " + control.ShellWord(name) + " " + control.ShellWord(checkpoint)},
		{"Link for commands", p.sessionWord(name, checkpoint)},
		{"Link to this page", p.base() + p.sessionPath(name) + query("at", checkpoint)},
	}}
	if p.token.Role == records.RepoToken {
		f.Token = p.sessionPath(name) + "/command"
	}
	return f
}

// commandPage shows a command that contains the user's token.
type commandPage struct {
	frame
	Commands []command
	Scope    records.Scope
	Repo     string
	Expires  time.Time
	Back     string
}

// tokenCommand answers a form with the command that forks a session, including the token in the user's cookie. This
// page is the only one that contains a secret, so it is not compressed, and it is sent only in answer to forms of this
// server.
func (a *acting) tokenCommand(ctx context.Context) error {
	if a.token.Role != records.RepoToken {
		return &Problem{http.StatusForbidden, "Not for this token",
			"Your token allows more than one repository, so it is not part of a command. Make one with artifactfs token create."}
	}
	checkpoint := a.r.PostForm.Get("at")
	var metas []*session.Meta
	err := a.look(ctx, func(g gitread.Repo, refs map[string]string) (err error) {
		if _, err = g.Checkpoint(ctx, refs, a.name, checkpoint); err == nil {
			metas, err = g.Metas(ctx, refs, []string{a.name})
		}
		return err
	})
	if err != nil {
		return err
	}
	secret := control.ShellWord(a.secret)
	text := "ARTIFACTFS_SESSION_TOKEN=" + secret + " " + a.forkCommand(a.name, checkpoint)
	// If the mounted remote is a repository of this server, the command also uses the token for it. The token is not
	// sent to other hosts.
	if metas[0] != nil && endpoint.SameHost(metas[0].Remote, a.remote()) {
		text = "ARTIFACTFS_TOKEN=" + secret + " " + text
	}
	if a.token.Scope != records.WriteScope {
		text += " --session-remote " + control.RemoteEmbedded
	}
	page := commandPage{frame: a.frame("Fork with your token",
		append(a.within(), crumb{a.name, a.sessionPath(a.name)})...),
		Commands: []command{{"Fork from here", text}}, Scope: a.token.Scope, Repo: a.repo.Namespace + "/" + a.repo.Name,
		Expires: a.token.Expires,
		Back:    a.sessionPath(a.name) + query("at", checkpoint)}
	a.plain = true
	return a.send(http.StatusOK, "command.html", page)
}
