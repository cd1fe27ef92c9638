package ui

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/internal/lazy"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/meter"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/quota"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session/thin"
)

const (
	// patience is the maximum time in which a client must receive a page.
	patience = 30 * time.Second
	// statusClosed is the status in the audit log of a request whose client has closed the connection.
	statusClosed = 499
)

// visit is one request and its answer. It is used by one goroutine.
type visit struct {
	u      *UI
	w      http.ResponseWriter
	r      *http.Request
	secret string // token in the cookie
	token  records.Token
	status int  // HTTP status of the answer; 0 until it is sent
	plain  bool // whether the page contains a secret, so that it must not be compressed
}

// Problem is an error that is shown to the user.
type Problem struct {
	Status int
	Title  string
	Text   string
}

func (p *Problem) Error() string { return p.Title }

// missing returns the problem for an object that does not exist, or that the token does not allow to see. Both look the
// same, so that users do not learn the names of objects that they may not see.
func missing(text string) error { return &Problem{http.StatusNotFound, "Not found", text} }

// errSignIn means that the request has no valid token.
var errSignIn = errors.New("request has no valid token")

func (v *visit) serve() {
	defer v.note()
	if err := v.route(); err != nil {
		v.fail(err)
	}
}

// parts returns the decoded components of the path below Prefix.
func (v *visit) parts() ([]string, error) {
	path, ok := strings.CutPrefix(v.r.URL.EscapedPath(), Prefix)
	if !ok {
		return nil, missing("There is no such page.")
	}
	var parts []string
	for component := range strings.SplitSeq(strings.TrimSuffix(path, "/"), "/") {
		part, err := url.PathUnescape(component)
		if err != nil || part == "" || strings.Contains(part, "\x00") {
			return nil, missing("There is no such page.")
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// route answers the request.
func (v *visit) route() error {
	ctx, cancel := context.WithTimeout(v.r.Context(), answerTime)
	defer cancel()
	v.r = v.r.WithContext(ctx)
	if v.r.Method != http.MethodPost {
		// FormValue would read a body of several parts for any method, and store large parts in files that stay.
		v.r.Body = http.NoBody
	}
	switch {
	case v.r.URL.Path == signInPath:
		return v.signIn()
	case v.r.URL.Path == signOutPath:
		return v.signOut()
	case v.r.Method == http.MethodPost:
		if err := v.ownForm(); err != nil {
			return err
		}
	case v.r.Method != http.MethodGet && v.r.Method != http.MethodHead:
		return v.notAllowed()
	}
	if err := v.identify(ctx); err != nil {
		v.r.Body = http.NoBody // the form is not read, not even by the page that asks for a token
		return err
	}
	post := v.r.Method == http.MethodPost
	switch {
	case v.r.URL.Path == "/" && post:
		return v.notAllowed()
	case v.r.URL.Path == "/":
		return v.home(ctx)
	}
	parts, err := v.parts()
	if err != nil {
		return err
	}
	if len(parts) == 1 && !post {
		return v.namespace(ctx, parts[0])
	}
	if post && (len(parts) != 5 || parts[2] != "s") {
		return v.notAllowed()
	}
	p, err := v.open(ctx, parts[0], parts[1])
	if err != nil {
		return err
	}
	if post {
		leave, err := v.u.bodies.Enter(ctx, v.r.ContentLength, p.shares()...)
		if err != nil {
			return err
		}
		defer leave()
		if err := v.form(maxAct); err != nil {
			return err
		}
	}
	if len(parts) == 5 && parts[2] == "s" {
		a := &acting{p, parts[3]}
		if post {
			return a.act(ctx, parts[4])
		}
		return a.ask(ctx, parts[4])
	}
	switch rest := parts[2:]; {
	case len(rest) == 0:
		return p.overview(ctx)
	case len(rest) == 2 && rest[0] == "s":
		return p.session(ctx, rest[1])
	case len(rest) == 1 && rest[0] == "diff":
		return p.diff(ctx)
	case len(rest) == 2 && rest[0] == "diff" && rest[1] == "file":
		return p.fileDiff(ctx)
	case len(rest) == 1 && rest[0] == "archived":
		return p.archived(ctx)
	case len(rest) == 1 && rest[0] == "compare":
		return p.comparePoints(ctx)
	case len(rest) >= 2 && rest[0] == "tree":
		return p.tree(ctx, rest[1], strings.Join(rest[2:], "/"))
	}
	return missing("There is no such page.")
}

// identify finds the token of the cookie and checks it.
func (v *visit) identify(ctx context.Context) error {
	c, err := v.r.Cookie(v.cookieName())
	if err != nil {
		return errSignIn
	}
	v.secret = c.Value
	v.token, err = v.u.o.Guard.Any(ctx, v.asRequest())
	if errors.Is(err, access.ErrInvalid) || errors.Is(err, access.ErrMissing) {
		return errSignIn
	}
	return err
}

// asRequest returns a request that has the token in the header in which programs send it.
func (v *visit) asRequest() *http.Request {
	return &http.Request{Header: http.Header{"Authorization": {"Bearer " + v.secret}}}
}

// frame contains the data that every page shows.
type frame struct {
	Title         string
	Crumbs        []crumb
	Who           string // name of the user; "" if no user is signed in
	Style, Script string
	Icon          string
	Said          string // message about the last act of the user; "" if there is none
	Ask           bool   // whether the script asks the user before it signs in with the token in a link

	MoreStyle, MoreScript string // paths of a style and a script of an embedding program; "" if there are none
}

// crumb is a link to a page above the present one.
type crumb struct{ Name, Path string }

func (v *visit) frame(title string, crumbs ...crumb) frame {
	f := frame{Title: shown(title), Crumbs: crumbs, Style: v.u.paths["page.css"], Script: v.u.paths["page.js"],
		Icon: v.u.paths["icon.svg"],
		Said: v.said(), Ask: v.asks()}
	if v.token.ID != "" {
		f.Who = shown(firstOf(v.token.Actor, v.token.Label, "token of "+string(v.token.Role)))
	}
	return f
}

// asks reports whether the user must confirm a sign-in with the token in a link. The link could replace another
// sign-in, or a page of another site may have opened it to make the user act with a foreign token. Only on secure
// connections do browsers report where a link comes from. A program that embeds the page accepts only its own token, so
// it does not ask.
func (v *visit) asks() bool {
	site := v.r.Header.Get("Sec-Fetch-Site")
	return v.u.o.Embedding.Cookie == "" && (v.token.ID != "" || site != "none" && site != "same-origin")
}

// firstOf returns the first text that is not empty.
func firstOf(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

// plainHost matches hosts that a content security policy can name. IPv6 addresses cannot be named.
var plainHost = lazy.Regexp(`^[A-Za-z0-9.-]+(:[0-9]+)?$`)

// policy returns the content security policy of pages. It allows only the script and the style of this package, and
// forms to this server.
func (v *visit) policy() string {
	source := "'self'"
	if plainHost().MatchString(v.r.Host) {
		source = v.r.Host + assetDir
		// use the host in the public URL, because a proxy may pass on another one
		if _, host, ok := strings.Cut(v.u.o.URL, "://"); ok {
			source += " " + host + assetDir
		}
	}
	return "default-src 'none'; script-src " + source + "; style-src " + source + "; img-src " + source +
		"; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}

// send sends a page that the template called name makes from data.
func (v *visit) send(status int, name string, data any) error {
	var b bytes.Buffer
	if err := v.u.pages.ExecuteTemplate(&b, name, data); err != nil {
		return err
	}
	body, h := b.Bytes(), v.w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", v.policy())
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	// With a stricter policy, browsers would not send the origin of a form, which is checked (see signIn).
	h.Set("Referrer-Policy", "same-origin")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Vary", "Accept-Encoding, Cookie")
	// only a page without a secret is compressed, because the size of a compressed page may reveal a secret
	if accepts(v.r) && !v.plain {
		body = compress(body)
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	v.status = status
	// an error is ignored, because the writers of tests have no deadlines
	_ = http.NewResponseController(v.w).SetWriteDeadline(time.Now().Add(patience))
	v.w.WriteHeader(status)
	if v.r.Method != http.MethodHead {
		_, _ = v.w.Write(body) // an error means that the client has closed the connection
	}
	return nil
}

// redirect sends the browser to another page of this server, which it requests by GET.
func (v *visit) redirect(path string) error {
	v.status = http.StatusSeeOther
	h := v.w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Location", path)
	v.w.WriteHeader(http.StatusSeeOther)
	return nil
}

// problemPage is the page that shows an error.
type problemPage struct {
	frame
	Text string
}

func (v *visit) fail(err error) {
	p, log := problemOf(err)
	switch {
	case errors.Is(err, errSignIn):
		status := http.StatusUnauthorized
		if v.r.URL.Path == "/" {
			status = http.StatusOK
		}
		err = v.askForToken(status, "")
	case p.Status == statusClosed:
		v.status = statusClosed
		return
	default:
		if log {
			v.u.o.Log.Error("could not show a page", zap.String("path", v.r.URL.Path), zap.Error(err))
		}
		switch p.Status {
		case http.StatusServiceUnavailable:
			v.w.Header().Set("Retry-After", "1")
		case http.StatusTooManyRequests:
			v.w.Header().Set("Retry-After", "60")
		}
		err = v.send(p.Status, "problem.html", problemPage{v.frame(p.Title), p.Text})
	}
	if err != nil {
		v.u.o.Log.Error("could not show an error", zap.Error(err))
	}
}

// problemOf returns the problem that is shown to the user for an error. log is true if the error is a fault of the
// server, and must be logged.
func problemOf(err error) (p *Problem, log bool) {
	var own *Problem
	var over quota.Exceeded
	switch {
	case errors.As(err, &own):
		return own, false
	case errors.As(err, &over):
		return &Problem{over.Status(), "Over the quota", over.Error() + "."}, false
	case errors.Is(err, records.ErrNotFound), errors.Is(err, read.ErrNotFound):
		return &Problem{http.StatusNotFound, "Not found", "This does not exist in the repository."}, false
	case errors.Is(err, gitread.ErrCheckpointName), errors.Is(err, gitread.ErrAmbiguous):
		return &Problem{http.StatusNotFound, "Not found", "No checkpoint has this name, or several begin with it."}, false
	case errors.Is(err, access.ErrInvalid), errors.Is(err, access.ErrMissing), errors.Is(err, access.ErrInsufficient):
		return &Problem{http.StatusNotFound, "Not found", "This does not exist, or your token does not allow you to see it."},
			false
	case errors.Is(err, places.ErrBusy):
		return &Problem{http.StatusServiceUnavailable, "Busy", "Too many pages are being read at the moment. Try again."},
			false
	case errors.Is(err, records.ErrUnavailable), errors.Is(err, objects.ErrUnavailable),
		errors.Is(err, context.DeadlineExceeded):
		return &Problem{http.StatusServiceUnavailable, "Unavailable",
			"The storage of the server does not answer. Try again."}, true
	case errors.Is(err, objects.ErrFull):
		return &Problem{http.StatusInsufficientStorage, "Full", "The storage of the server is full."}, true
	case errors.Is(err, context.Canceled):
		return &Problem{Status: statusClosed}, false
	}
	return &Problem{http.StatusInternalServerError, "Internal error",
		"The server could not make this page. Its log has the reason."}, true
}

// cause describes the request for the audit log. The path contains no secret, because tokens are sent only in bodies
// and cookies.
func (v *visit) cause() records.Cause {
	remote, _, err := net.SplitHostPort(v.r.RemoteAddr)
	if err != nil {
		remote = v.r.RemoteAddr
	}
	return records.Cause{TokenID: v.token.ID, Actor: firstOf(v.token.Actor, v.token.Label), Remote: remote,
		Method: v.r.Method,
		Target: v.r.URL.EscapedPath()}
}

// note writes the audit entry of the request.
func (v *visit) note() {
	v.u.o.Meter.Audit(records.AuditEntry{Time: v.u.o.Now(), Result: v.status, Cause: v.cause()})
}

// place is a repository that the token of a visit may read.
type place struct {
	*visit
	repo records.Repo
	path string            // path of the page of the repository
	thin map[string]string // thin sessions that cannot be read, each with the reason; set by refs
}

// open returns a repository, or an error if the token does not allow to read it.
func (v *visit) open(ctx context.Context, namespace, name string) (*place, error) {
	r, err := v.u.o.Repos.Get(ctx, namespace, name)
	none := errors.Is(err, records.ErrNotFound)
	if err != nil && !none {
		return nil, err
	}
	if none {
		r = records.Repo{Namespace: namespace}
	}
	if _, err := v.u.o.Guard.Git(ctx, v.asRequest(), r, records.ReadScope); err != nil {
		return nil, err
	}
	if none {
		return nil, access.ErrInvalid // the answer is the same as for a token of another repository
	}
	if err := v.u.o.Quotas.Request(r.Namespace); err != nil {
		return nil, err
	}
	if r.Status != records.Ready {
		return nil, &Problem{http.StatusConflict, "Not ready",
			"The repository is still being made (" + string(r.Status) + "). Try again."}
	}
	return &place{visit: v, repo: r, path: Prefix + r.Namespace + "/" + r.Name}, nil
}

// shares returns the shares of places that the visit uses.
func (p *place) shares() []places.Share { return places.Of(p.repo.Namespace, p.repo.ID, p.token.ID) }

// read calls the function do, which reads from the git directory of the repository.
func (p *place) read(ctx context.Context, do func(gitread.Repo) error) error {
	at, err := p.u.reading.Enter(ctx, places.Large, p.shares()...)
	if err != nil {
		return err
	}
	defer at.Release()
	dir, err := p.u.o.Replicas.Acquire(ctx, p.repo.ID)
	if err != nil {
		return err
	}
	defer dir.Release()
	from, err := dir.Unpacked(ctx)
	if err != nil {
		return err
	}
	p.u.o.Meter.Count(p.repo, meter.Read, 0)
	g := gitread.Repo{Repo: read.Repo{Dir: from.Dir, Git: p.u.o.Replicas.Git(), Pool: &p.u.pool}}
	g.Git.Memory = at.Memory(g.Git.Memory)
	if err = do(g); err != nil && ctx.Err() != nil {
		return context.Cause(ctx) // return the cause, because the end of ctx has killed git
	}
	return err
}

// readRefs calls the function do like read, with the refs of the repository. They are read when the visit has its
// place, because a repository can have many, and the visit may wait.
func (p *place) readRefs(ctx context.Context, do func(gitread.Repo, map[string]string) error) error {
	return p.read(ctx, func(g gitread.Repo) error {
		refs, err := p.refs(ctx)
		if err != nil {
			return err
		}
		return do(g, refs)
	})
}

// refs returns the refs of the repository by name, including those that thin sessions have in their containers.
func (p *place) refs(ctx context.Context) (map[string]string, error) {
	all, err := p.u.o.Repos.Refs(ctx, p.repo.ID)
	if err != nil {
		return nil, err
	}
	refs := make(map[string]string, len(all))
	for _, ref := range all {
		refs[ref.Name] = ref.ID
	}
	if !slices.ContainsFunc(all, func(ref records.Ref) bool { return strings.HasPrefix(ref.Name, thin.Prefix) }) {
		return refs, nil
	}
	dir, err := p.u.o.Replicas.Acquire(ctx, p.repo.ID)
	if err != nil {
		return nil, err
	}
	defer dir.Release()
	from, err := dir.Unpacked(ctx)
	if p.thin = from.Thin; err != nil {
		return nil, err
	}
	return from.With(refs), nil
}
