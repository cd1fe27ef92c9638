package ui

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/gate"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/review"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/annotate"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/lifecycle"
)

// Acts makes the acts of users. *review.Service implements it.
type Acts interface {
	Annotate(ctx context.Context, by review.By, repo records.Repo, name string,
		a review.Annotation) (review.Annotated, error)
	RequestApproval(ctx context.Context, by review.By, repo records.Repo, name string,
		r review.ApprovalRequest) (review.Approval, error)
	Answer(ctx context.Context, by review.By, repo records.Repo, name string, op approval.Op,
		request, text string) (review.Approval, error)
	Approvals(ctx context.Context, by review.By, repo records.Repo, name string) ([]review.Approval, error)
	Merge(ctx context.Context, by review.By, repo records.Repo, name string, m review.Merge) (review.Merged, error)
	Change(ctx context.Context, by review.By, repo records.Repo, name string, c lifecycle.Change) (session.Meta, error)
	Delete(ctx context.Context, by review.By, repo records.Repo, name string) (review.Deleted, error)
	Pin(ctx context.Context, by review.By, repo records.Repo, name, pin, checkpoint string) (id string, err error)
	Unpin(ctx context.Context, by review.By, repo records.Repo, name, pin string) error
}

// maxAct is the maximum size, in bytes, of a form for an act. It contains an escaped text and a few names.
const maxAct = 256 << 10

// doing states which acts on a session the token of a visit allows. A page has no buttons for other acts.
type doing struct {
	Path    string // path of the page of the session
	Why     string // reason why the page has no buttons; "" if it has some
	Comment bool
	Request bool // whether the user may request approvals, and withdraw own requests
	Vote    bool // whether the user may grant and deny requests
	Merge   bool // whether the user may move the default branch
	Pin     bool
	Life    bool // whether the user may close, archive and reopen the session
	Actor   string
}

// doing returns which acts on a session the token allows. The server checks this again when an act is made.
func (p *place) doing(refs map[string]string, name string) *doing {
	d := &doing{Path: p.sessionPath(name), Actor: gate.Actor(p.token)}
	switch {
	case p.u.o.Acts == nil:
		d.Why = "This page only reads."
	case p.token.Scope != records.WriteScope:
		d.Why = "Your token can only read, so this page has no buttons that change something."
	case p.repo.ReadOnly:
		d.Why = "The repository is read-only, so this page has no buttons that change something."
	default:
		d.Comment = p.may(refs, session.AnnotationsRef(name))
		d.Request = p.may(refs, approval.Ref(name))
		d.Merge = p.may(refs, "refs/heads/"+p.repo.DefaultBranch)
		d.Pin = p.may(refs, session.PinPrefix(name)+"pin")
		d.Life = p.may(refs, session.MetaRef(name))
		d.Vote = d.Request && p.token.Session == "" && (p.token.Actor != "" || p.token.Role != records.RepoToken)
	}
	return d
}

// may reports whether the rules of the token allow it to move or create a ref.
func (p *place) may(refs map[string]string, ref string) bool {
	some := strings.Repeat("1", 40)
	if p.repo.ObjectFormat == "sha256" {
		some = strings.Repeat("1", 64)
	}
	u := records.RefUpdate{Name: ref, Old: cmp.Or(refs[ref], strings.Repeat("0", len(some))), New: some}
	return access.Allow(p.token, u, access.State{Format: p.repo.ObjectFormat,
		Forced: func() (bool, error) { return false, nil },
		Owner:  func() (access.Owner, error) { return access.OwnerIn(refs), nil }}) == nil
}

// by returns the user of the visit, as the user of an act.
func (v *visit) by() review.By { return review.By{Token: v.token, Cause: v.cause()} }

// acting is a visit that makes an act on a session, or that shows the page on which the user confirms one.
type acting struct {
	*place
	name string // name of the session
}

// look calls the function do like readRefs, if the repository has the session. The refs must not be used afterwards,
// because an act waits for other places.
func (a *acting) look(ctx context.Context, do func(gitread.Repo, map[string]string) error) error {
	return a.readRefs(ctx, func(g gitread.Repo, refs map[string]string) error {
		if err := hasSession(refs, a.name); err != nil {
			return err
		}
		return do(g, refs)
	})
}

// act handles a form that was submitted for a session. The path of the URL is that of the session, followed by the name
// of the form.
func (a *acting) act(ctx context.Context, form string) error {
	if form == "command" {
		return a.tokenCommand(ctx)
	}
	do := map[string]func(ctx context.Context) (said, to string, err error){
		"comment": a.comment, "thread": a.thread, "request": a.request, "answer": a.answer,
		"merge": a.merge, "state": a.state, "delete": a.remove, "pin": a.pin, "unpin": a.unpin,
	}[form]
	if do == nil {
		return a.notAllowed()
	}
	if a.u.o.Acts == nil {
		return &Problem{http.StatusForbidden, "Refused", "This page only reads."}
	}
	if form != "merge" { // which looks at more
		if err := a.look(ctx, func(gitread.Repo, map[string]string) error { return nil }); err != nil {
			return err
		}
	}
	said, to, err := do(ctx)
	var refused *review.Problem
	if errors.As(err, &refused) {
		return a.refused(refused)
	}
	if err != nil {
		return err
	}
	a.setMessage(said)
	return a.redirect(to)
}

// notAllowed answers a form that is submitted to the path of a page.
func (v *visit) notAllowed() error {
	v.w.Header().Set("Allow", "GET, HEAD")
	return &Problem{http.StatusMethodNotAllowed, "Not allowed", "This page does not receive forms."}
}

// back returns the path of the page that has submitted the form, or that of the session if the browser does not name
// the page. fragment is the part of that page to show.
func (a *acting) back(fragment string) string {
	to := "/"
	if from, err := url.Parse(a.r.Referer()); err == nil && from.Host == a.r.Host {
		to = ownPath(from.RequestURI())
	}
	if to == "/" {
		to = a.sessionPath(a.name)
	}
	return to + fragment
}

// text returns the text of the form's field of several lines, in which browsers write line breaks as CR and LF.
func (a *acting) text() string { return strings.ReplaceAll(a.r.PostForm.Get("text"), "\r\n", "\n") }

// count returns the number in a field of the form, or 0 if the field is empty.
func (a *acting) count(field string) (int, error) {
	text := strings.TrimSpace(a.r.PostForm.Get(field))
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, &review.Problem{Kind: review.Invalid, Text: fmt.Sprintf("%.40q is not a number of lines or hours", text)}
	}
	return n, nil
}

// comment begins a thread. said is the message about the act, and to is the path of the next page; this also applies to
// the methods below.
func (a *acting) comment(ctx context.Context) (said, to string, err error) {
	f := a.r.PostForm
	n := review.Annotation{Op: annotate.Open, Text: a.text(), Checkpoint: f.Get("checkpoint"), Commit: f.Get("commit"),
		Path: f.Get("path")}
	if n.Line, err = a.count("line"); err != nil {
		return "", "", err
	}
	if n.End, err = a.count("end"); err != nil {
		return "", "", err
	}
	made, err := a.u.o.Acts.Annotate(ctx, a.by(), a.repo, a.name, n)
	return "Your comment was added." + redacted(made), a.back("#t-" + made.Thread.ID), err
}

// thread adds a comment to a thread, resolves it or reopens it.
func (a *acting) thread(ctx context.Context) (said, to string, err error) {
	op := annotate.Op(a.r.PostForm.Get("op"))
	said, ok := map[annotate.Op]string{annotate.Reply: "Your reply was added.",
		annotate.Resolve: "The thread was resolved.",
		annotate.Reopen:  "The thread was reopened."}[op]
	if !ok {
		return "", "", &review.Problem{Kind: review.Invalid, Text: "the form names no act"}
	}
	made, err := a.u.o.Acts.Annotate(ctx, a.by(), a.repo, a.name,
		review.Annotation{Op: op, Thread: a.r.PostForm.Get("thread"), Text: a.text()})
	return said + redacted(made), a.back("#t-" + made.Thread.ID), err
}

// redacted returns a sentence that states that secrets were removed from a text, or "" if there were none.
func redacted(made review.Annotated) string {
	if made.Redacted == 0 {
		return ""
	}
	return " " + number(int(made.Redacted), "secret was", "secrets were") + " removed from the text."
}

// request requests an approval of the newest checkpoint.
func (a *acting) request(ctx context.Context) (said, to string, err error) {
	f := a.r.PostForm
	hours, err := a.count("hours")
	if err != nil {
		return "", "", err
	}
	r := review.ApprovalRequest{Action: approval.Action(f.Get("action")), Branch: strings.TrimSpace(f.Get("branch")),
		Text:    a.text(),
		Expires: time.Duration(min(hours, 365*24)) * time.Hour}
	r.Reviewers = strings.FieldsFunc(f.Get("reviewers"), func(c rune) bool { return c == ',' || c == ' ' })
	made, err := a.u.o.Acts.RequestApproval(ctx, a.by(), a.repo, a.name, r)
	return "The approval was requested.", a.sessionPath(a.name) + "#r-" + made.Request.ID, err
}

// answer grants, denies or withdraws a request.
func (a *acting) answer(ctx context.Context) (said, to string, err error) {
	op := approval.Op(a.r.PostForm.Get("op"))
	said, ok := map[approval.Op]string{approval.Grant: "You have granted the request.",
		approval.Deny:     "You have denied the request.",
		approval.Withdraw: "It was withdrawn."}[op]
	if !ok {
		return "", "", &review.Problem{Kind: review.Invalid, Text: "the form names no act"}
	}
	made, err := a.u.o.Acts.Answer(ctx, a.by(), a.repo, a.name, op, a.r.PostForm.Get("request"), a.text())
	if op == approval.Grant && !made.Counted {
		said += " The grant does not count: the policy asks for other users, or you have requested it or granted it before."
	}
	return said, a.sessionPath(a.name) + "#r-" + made.Request.ID, err
}

// statuses are the HTTP statuses for the kinds of problems.
var statuses = map[review.Kind]int{review.Invalid: http.StatusBadRequest, review.Missing: http.StatusNotFound,
	review.Forbidden: http.StatusForbidden, review.Conflict: http.StatusConflict, review.Refused: http.StatusForbidden}

// refusedPage shows why an act was not made.
type refusedPage struct {
	frame
	Reason string
	Paths  []string // files with conflicts
	Text   string   // text of the form, which is shown so that the user does not lose it
	Back   string
}

func (a *acting) refused(problem *review.Problem) error {
	page := refusedPage{frame: a.frame("Not done", append(a.within(), crumb{a.name, a.sessionPath(a.name)})...),
		Reason: shown(problem.Error()), Text: a.text(), Back: a.back("")}
	for _, path := range problem.Paths[:min(len(problem.Paths), panelFiles)] {
		page.Paths = append(page.Paths, shown(path))
	}
	return a.send(cmp.Or(statuses[problem.Kind], http.StatusConflict), "refused.html", page)
}

// saidCookie returns the name of the cookie with the message about the last act, which the next page shows. A cookie is
// used because a link cannot set one.
func (v *visit) saidCookie() string { return v.cookieName() + "-said" }

// setMessage makes the next page that this browser requests show a text.
func (v *visit) setMessage(text string) {
	c := &http.Cookie{Name: v.saidCookie(), Value: base64.RawURLEncoding.EncodeToString([]byte(text)), Path: "/",
		HttpOnly: true,
		Secure:   v.secure(), SameSite: http.SameSiteStrictMode, MaxAge: 60}
	if text == "" {
		c.MaxAge = -1
	}
	http.SetCookie(v.w, c)
}

// said returns the message about the last act, and removes it. For a part of a page, it returns "".
func (v *visit) said() string {
	c, err := v.r.Cookie(v.saidCookie())
	if err != nil || v.r.Method != http.MethodGet || v.r.FormValue("part") != "" {
		return ""
	}
	v.setMessage("")
	text, err := base64.RawURLEncoding.DecodeString(c.Value)
	if err != nil {
		return ""
	}
	return clip(string(text), 500)
}

// commentForm is the form for a new thread.
type commentForm struct {
	Do                       *doing
	Label                    string
	Checkpoint, Commit, Path string
	Lines                    bool
}

// answers returns the operations by which the user may answer a request with the state v. If self is true, users may
// grant their own requests.
func (d *doing) answers(v approval.Verdict, self bool) (ops []approval.Op) {
	switch v.Status {
	case approval.Open, approval.Granted, approval.Denied:
	default:
		return nil
	}
	mine := func(r approval.Record) bool { return r.Actor == d.Actor }
	if d.Vote && (self || !mine(v.Request)) {
		ops = append(ops, approval.Grant, approval.Deny)
	}
	if d.Request && (mine(v.Request) || slices.ContainsFunc(v.Grants, mine) || slices.ContainsFunc(v.Denials, mine)) {
		ops = append(ops, approval.Withdraw)
	}
	return ops
}
