package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/review"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/lifecycle"
)

// confirmPage asks the user to confirm an act that is not easily undone.
type confirmPage struct {
	frame
	Do   *doing
	Form string // name of the form: "merge", "state" or "delete"
	Back string

	// The fields below are for a merge.
	Promote       bool   // whether the branch is the default branch
	Branch        string // name of the branch without refs/heads/
	Tip           string // commit of the branch; "" if the branch does not exist
	Newest        string // commit of the newest checkpoint
	NewestID      string // id of the newest checkpoint
	Diff          string // path of the difference between the branch and the newest checkpoint
	Rules         []ruleView
	Policy        string
	OtherCommands []command // commands that merge into branches of other repositories

	// The fields below are for a change of the state.
	To   session.LifeState
	Verb string
}

// ask answers a request for the page on which the user confirms an act. form is the name of the form.
func (a *acting) ask(ctx context.Context, form string) error {
	page := confirmPage{Form: form, Back: a.sessionPath(a.name)}
	above := append(a.within(), crumb{a.name, page.Back})
	switch form {
	case "merge":
		page.Promote = a.r.FormValue("promote") != ""
		page.Branch = strings.TrimPrefix(cmp.Or(strings.TrimSpace(a.r.FormValue("branch")), a.repo.DefaultBranch),
			"refs/heads/")
		if !refname.Valid("refs/heads/" + page.Branch) {
			return missing("No branch can have this name.")
		}
		verb := "Adopt "
		if page.Promote {
			verb = "Promote "
		}
		page.frame = a.frame(verb+a.name+" to "+page.Branch, above...)
	case "state":
		page.To = session.LifeState(a.r.FormValue("to"))
		verb, known := lifeVerbs[page.To]
		if !known {
			return missing("A session has no such state.")
		}
		page.Verb = verb
		page.frame = a.frame(verb+" "+a.name, above...)
	case "delete":
		page.frame = a.frame("Delete "+a.name, above...)
	default:
		return missing("There is no such page.")
	}
	err := a.look(ctx, func(g gitread.Repo, refs map[string]string) error {
		if page.Do = a.doing(refs, a.name); form == "merge" {
			return a.askMerge(ctx, g, refs, &page)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return a.send(http.StatusOK, "confirm.html", page)
}

// lifeVerbs are the verbs for the changes of state that users can make on the page.
var lifeVerbs = map[session.LifeState]string{session.Closed: "Close", session.Archived: "Archive",
	session.Open: "Reopen"}

// askMerge adds the data of a merge to the page on which it is confirmed.
func (a *acting) askMerge(ctx context.Context, g gitread.Repo, refs map[string]string, page *confirmPage) error {
	page.Tip = refs["refs/heads/"+page.Branch]
	link := sessionlink.Link{Remote: a.remote(), Session: a.name}
	page.OtherCommands =
		[]command{{"Promote", "artifactfs session promote " + control.ShellWord(link.String()) + " --to URL:BRANCH"}}
	all, err := g.Newest(ctx, refs)
	if err != nil {
		return err
	}
	page.Newest, page.NewestID = all[a.name].Commit, all[a.name].ID
	if page.Tip != "" && page.Newest != "" {
		page.Diff = a.path + "/diff" + query("a", page.Branch, "b", a.name+"@"+page.NewestID)
	}
	policy, err := policyOf(ctx, g, refs)
	if err != nil {
		return err
	}
	var panel reviewPanel
	panel.addRules(policy, []string{"refs/heads/" + page.Branch}, "")
	page.Rules, page.Policy = panel.Rules, panel.Policy
	return nil
}

// merge merges the newest checkpoint of the session, if it is still the one that the user has seen.
func (a *acting) merge(ctx context.Context) (said, to string, err error) {
	f := a.r.PostForm
	err = a.look(ctx, func(g gitread.Repo, refs map[string]string) error {
		newest, err := g.Checkpoint(ctx, refs, a.name, "@")
		if err == nil && newest != f.Get("seen") || errors.Is(err, read.ErrNotFound) {
			err = &review.Problem{Kind: review.Conflict,
				Text: "The session has another newest checkpoint than the one that the page has shown. Look again."}
		}
		return err
	})
	if err != nil {
		return "", "", err
	}
	made, err := a.u.o.Acts.Merge(ctx, a.by(), a.repo, a.name,
		review.Merge{Method: review.Method(f.Get("how")), Branch: f.Get("branch"),
			Message: a.text(), Expect: f.Get("expect")})
	said = fmt.Sprintf("%s is now at %s, with %s of the session.", made.Branch, short(made.New),
		number(made.Commits, "commit", "commits"))
	return said, a.sessionPath(a.name), err
}

// state closes, archives or reopens the session.
func (a *acting) state(ctx context.Context) (said, to string, err error) {
	state := session.LifeState(a.r.PostForm.Get("to"))
	if lifeVerbs[state] == "" {
		return "", "", &review.Problem{Kind: review.Invalid, Text: "the form names no state"}
	}
	m, err := a.u.o.Acts.Change(ctx, a.by(), a.repo, a.name, lifecycle.Change{State: state, Reason: a.text()})
	return "The session is now " + string(m.State) + ".", a.sessionPath(a.name), err
}

// remove moves the session to the trash.
func (a *acting) remove(ctx context.Context) (said, to string, err error) {
	made, err := a.u.o.Acts.Delete(ctx, a.by(), a.repo, a.name)
	said = "Session " + a.name + " was deleted. Within 7 days, artifactfs session undelete " + a.name +
		" --session-remote " + a.remote() +
		" restores it."
	if len(made.Kept) > 0 {
		said += " These refs stay: " + strings.Join(made.Kept, ", ") + "."
	}
	return said, a.path, err
}

// pin adds a name to a checkpoint, so that it is kept.
func (a *acting) pin(ctx context.Context) (said, to string, err error) {
	name := strings.TrimSpace(a.r.PostForm.Get("pin"))
	_, err = a.u.o.Acts.Pin(ctx, a.by(), a.repo, a.name, name, a.r.PostForm.Get("at"))
	return "The checkpoint is now called " + name + ".", a.back(""), err
}

// unpin removes the name of a checkpoint.
func (a *acting) unpin(ctx context.Context) (said, to string, err error) {
	name := a.r.PostForm.Get("pin")
	err = a.u.o.Acts.Unpin(ctx, a.by(), a.repo, a.name, name)
	return "No checkpoint is called " + name + " any more.", a.back(""), err
}

// states returns buttons for the states to which the user may change a session from the state now.
func (d *doing) states(now session.LifeState) (list []stateButton) {
	if !d.Life {
		return nil
	}
	switch now {
	case session.Open, session.Active, session.Paused:
		return []stateButton{{session.Closed, "Close"}, {session.Archived, "Archive"}}
	case session.Closed:
		return []stateButton{{session.Archived, "Archive"}, {session.Open, "Reopen"}}
	case session.Archived:
		return []stateButton{{session.Open, "Reopen"}}
	}
	return nil
}

// stateButton is a link to the page on which a change of state is confirmed.
type stateButton struct {
	To   session.LifeState
	Verb string
}
