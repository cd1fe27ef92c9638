package ui

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/records"
)

const (
	signInPath  = assetDir + "sign-in"
	signOutPath = assetDir + "sign-out"
	maxForm     = 8 << 10 // maximum size, in bytes, of a form with a token
	// formTime is the time that a client has to send a form.
	formTime = 10 * time.Second
)

// secure reports whether browsers reach the server by https.
func (v *visit) secure() bool { return v.r.TLS != nil || strings.HasPrefix(v.u.o.URL, "https://") }

// cookieName returns the name of the cookie. If the name begins with __Host-, browsers accept the cookie only over
// https and only from this host.
func (v *visit) cookieName() string {
	if name := v.u.o.Embedding.Cookie; name != "" {
		return name
	}
	if v.secure() {
		return "__Host-artifactfs"
	}
	return "artifactfs"
}

// setCookie stores the token in the browser until the token expires or, if it does not expire, until the browser is
// closed. An empty secret removes the cookie.
func (v *visit) setCookie(t records.Token) {
	c := &http.Cookie{Name: v.cookieName(), Value: v.secret, Path: "/", HttpOnly: true, Secure: v.secure(),
		SameSite: http.SameSiteStrictMode,
		Expires:  t.Expires}
	if v.secret == "" {
		c.MaxAge = -1
	}
	http.SetCookie(v.w, c)
}

// signInPage is the page with the form for the token.
type signInPage struct {
	frame
	Next  string // path of the page that the user has requested
	Wrong string // reason why the last attempt has failed; "" if there was none
	Hint  string // text that tells the user where the token can be found, for a program that is not the server
	Again bool   // true if the user comes from another site, in which case the browser does not send the cookie
}

// askForToken sends the page with the form for the token. wrong is the reason why the last attempt has failed.
func (v *visit) askForToken(status int, wrong string) error {
	next := v.r.FormValue("next")
	if v.r.Method == http.MethodGet {
		next = v.r.URL.RequestURI()
	}
	v.token = records.Token{}
	again := v.r.Header.Get("Sec-Fetch-Site") == "cross-site"
	return v.send(status, "signin.html", signInPage{v.frame("Sign in"), ownPath(next), wrong, v.u.o.Embedding.Hint, again})
}

// ownPath returns text if it is a path of this server to which a browser may be redirected, and otherwise "/".
func ownPath(text string) string {
	to, err := url.Parse(text)
	if err != nil || to.IsAbs() || to.Host != "" || to.User != nil || !Serves(to.Path) ||
		strings.ContainsAny(text, "\\\r\n") ||
		strings.HasPrefix(to.Path, assetDir) {
		return "/"
	}
	return to.RequestURI()
}

// ownForm returns an error unless a page of this server has submitted the form of the request. It refuses forms of
// other sites, so that another site can neither act with the token of the user, nor sign the user in with another
// token, nor sign the user out.
func (v *visit) ownForm() error {
	if v.r.Method != http.MethodPost {
		v.w.Header().Set("Allow", "POST")
		return &Problem{http.StatusMethodNotAllowed, "Not allowed", "This path only receives forms."}
	}
	if err := v.u.origins.Check(v.r); err != nil {
		return &Problem{http.StatusForbidden, "Refused", "The form was sent by a page of another site."}
	}
	return nil
}

// form reads a form of up to limit bytes that a page of this server has submitted.
func (v *visit) form(limit int64) error {
	if err := v.ownForm(); err != nil {
		return err
	}
	control := http.NewResponseController(v.w)
	// errors are ignored, because the writers of tests have no deadlines
	_ = control.SetReadDeadline(time.Now().Add(formTime))
	v.r.Body = http.MaxBytesReader(v.w, v.r.Body, limit)
	if err := v.r.ParseForm(); err != nil {
		return &Problem{http.StatusBadRequest, "Invalid form", "The form is too large or invalid."}
	}
	_ = control.SetReadDeadline(time.Time{}) // remove the deadline, which would otherwise cancel the request
	return nil
}

// signIn stores the token of the form in the cookie if it is valid.
func (v *visit) signIn() error {
	if err := v.form(maxForm); err != nil {
		return err
	}
	v.secret = strings.TrimSpace(v.r.PostForm.Get("token"))
	t, err := v.u.o.Guard.Any(v.r.Context(), v.asRequest())
	if errors.Is(err, access.ErrInvalid) || errors.Is(err, access.ErrMissing) {
		return v.askForToken(http.StatusUnauthorized, "This token is unknown, revoked or expired.")
	}
	if err != nil {
		return err
	}
	v.token = t
	v.setCookie(t)
	return v.redirect(ownPath(v.r.PostForm.Get("next")))
}

func (v *visit) signOut() error {
	if err := v.form(maxForm); err != nil {
		return err
	}
	v.secret = ""
	v.setCookie(records.Token{})
	return v.redirect("/")
}

// home shows the start page for a token: a repository, the repositories of a namespace, or all namespaces.
func (v *visit) home(ctx context.Context) error {
	switch v.token.Role {
	case records.RepoToken:
		r, err := v.u.o.Repos.ByID(ctx, v.token.RepoID)
		if err != nil {
			return err
		}
		return v.redirect(Prefix + r.Namespace + "/" + r.Name)
	case records.OwnerToken:
		return v.redirect(Prefix + v.token.Namespace)
	}
	if _, err := v.u.o.Guard.Admin(ctx, v.asRequest(), "", records.ReadScope); err != nil {
		return err
	}
	after := v.r.FormValue("after")
	list, total, err := v.u.o.Namespaces.List(ctx, after, 0, pageSize)
	if err != nil {
		return err
	}
	page := listPage{frame: v.frame("Namespaces"), Total: total, What: "namespaces"}
	for _, n := range list {
		page.Rows = append(page.Rows, listRow{Name: n.Name, Path: Prefix + n.Name,
			Note: number(n.Repos, "repository", "repositories")})
	}
	if len(list) == pageSize {
		page.Next = "/?after=" + url.QueryEscape(list[pageSize-1].Name)
	}
	return v.send(http.StatusOK, "list.html", page)
}

// pageSize is the maximum number of entries on a page of a list.
const pageSize = 100

// listPage is a list of namespaces or of repositories.
type listPage struct {
	frame
	What  string
	Total int
	Rows  []listRow
	Next  string // path of the next page; "" if there is none
}

type listRow struct{ Name, Path, Note string }

// namespace lists the repositories of a namespace.
func (v *visit) namespace(ctx context.Context, name string) error {
	if _, err := v.u.o.Guard.Admin(ctx, v.asRequest(), name, records.ReadScope); err != nil {
		return err
	}
	if err := v.u.o.Quotas.Request(name); err != nil {
		return err
	}
	n, err := v.u.o.Namespaces.Get(ctx, name)
	if err != nil {
		return err
	}
	list, total, next, err := v.u.o.Repos.List(ctx,
		records.RepoQuery{Namespace: n.Name, Sort: "updated_at", Limit: pageSize,
			After: v.r.FormValue("after")})
	if errors.Is(err, records.ErrCursor) {
		return missing("The list has no such page.")
	}
	if err != nil {
		return err
	}
	page := listPage{frame: v.frame(n.Name), Total: total, What: "repositories"}
	for _, r := range list {
		page.Rows = append(page.Rows, listRow{r.Name, Prefix + r.Namespace + "/" + r.Name,
			"changed " + ago(r.Updated, v.u.o.Now())})
	}
	if next != "" {
		page.Next = Prefix + n.Name + "?after=" + url.QueryEscape(next)
	}
	return v.send(http.StatusOK, "list.html", page)
}
