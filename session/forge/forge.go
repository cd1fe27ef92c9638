// Package forge opens pull requests by the REST APIs of gitea, GitHub and GitLab. GitLab calls them merge requests.
//
//	f, err := forge.New(forge.Options{Repository: "https://github.com/team/app.git", Token: token})
//	pr, err := f.Open(ctx, forge.PullRequest{Title: "fix login", Head: "afs/fix-login", Base: "main"})
//
// Both branches must exist, in the same repository. If a pull request for the same two branches is open, Open changes
// its description instead. The token is sent only to the address of the API: redirections are not followed. Errors do
// not contain the token.
package forge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	requestTime = 30 * time.Second // time limit of a request
	maxAnswer   = 8 << 20          // maximum size of an answer in bytes
	maxMessage  = 300              // maximum length in bytes of the forge's message in an error
	// MaxBody is the maximum length of a description in bytes. GitHub refuses longer ones.
	MaxBody = 60_000
)

// Kind is a kind of forge.
type Kind string

// The supported forges. Gitea also stands for Forgejo, which has the same API.
const (
	Gitea  Kind = "gitea"
	GitHub Kind = "github"
	GitLab Kind = "gitlab"
)

// Kinds lists the supported forges.
var Kinds = []string{string(Gitea), string(GitHub), string(GitLab)}

var (
	// ErrUnknown means that the kind of forge is not configured, and cannot be derived from the URL of the repository.
	ErrUnknown = errors.New("URL of the repository does not show the kind of forge")
	// ErrRepository means that the URL of a repository cannot be that of a repository on a forge.
	ErrRepository = errors.New("URL is not that of a repository on a forge")
)

// Options describes a repository on a forge.
type Options struct {
	Repository string // URL of the repository, as git uses it
	Kind       Kind   // kind of forge; "": derived from the name of the host
	// URL is the address of the forge's web pages; "": the host of Repository. A forge that is served below a path
	// needs it.
	URL   string
	Token string
	HTTP  *http.Client // sends the requests; nil: a client with the default settings. Redirections are never followed.
}

// PullRequest describes a pull request.
type PullRequest struct {
	Title, Body string
	Head        string // short name of the branch that has the changes
	Base        string // short name of the branch into which the changes are to be merged
	// Retitle states that Open also changes the title of an existing pull request, not only its description.
	Retitle bool
}

// Opened is an open pull request.
type Opened struct {
	URL     string // address of the web page of the pull request
	Number  int64
	Created bool // whether Open has created it; false: it existed, and Open has changed its description
}

// Error is returned if a forge answers with an HTTP status that means a failure.
type Error struct {
	Status  int    // HTTP status
	Message string // message of the forge; "" if there is none
}

// Error returns a text with the status and the message.
func (e *Error) Error() string {
	text := fmt.Sprintf("the forge answers with status %d", e.Status)
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// api is the part of a forge's REST API that is needed to open pull requests.
type api interface {
	// find returns the open pull request that merges p.Head into p.Base; its Number is 0 if there is none.
	find(ctx context.Context, p PullRequest) (Opened, error)
	create(ctx context.Context, p PullRequest) (Opened, error)
	// update changes the description, and the title if p.Retitle is set.
	update(ctx context.Context, number int64, p PullRequest) (Opened, error)
}

// Forge opens pull requests in one repository.
type Forge struct {
	Kind Kind
	api  api
}

// New returns a Forge for a repository. It does not connect to the forge.
func New(o Options) (*Forge, error) {
	web, path, err := locate(o.Repository, o.URL)
	if err != nil {
		return nil, err
	}
	kind := o.Kind
	if kind == "" {
		if kind = kindOf(web.Hostname()); kind == "" {
			return nil, fmt.Errorf("%w: %s", ErrUnknown, web.Host)
		}
	}
	c := &caller{token: o.Token, http: &http.Client{Timeout: requestTime}}
	if o.HTTP != nil {
		*c.http = *o.HTTP
	}
	// net/http would send the token to other ports, to subdomains, and from https to http.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	f := &Forge{Kind: kind}
	owner, name, _ := strings.Cut(path, "/")
	switch kind {
	case Gitea:
		c.base, c.scheme = web.String()+"/api/v1", "token "
		f.api = gitea{pulls{c, owner, name}}
	case GitHub:
		c.base, c.scheme = web.String()+"/api/v3", "Bearer " // GitHub Enterprise Server
		if strings.EqualFold(web.Host, "github.com") {
			c.base = "https://api.github.com"
		}
		c.header = http.Header{"Accept": {"application/vnd.github+json"}, "X-Github-Api-Version": {"2022-11-28"}}
		f.api = github{pulls{c, owner, name}}
	case GitLab:
		c.base = web.String() + "/api/v4"
		f.api = gitlab{c, path}
	default:
		return nil, fmt.Errorf("%w: there is no forge %q", ErrUnknown, kind)
	}
	if kind != GitLab && (name == "" || strings.Contains(name, "/")) {
		return nil, fmt.Errorf("%w: want OWNER/NAME, got %q", ErrRepository, path)
	}
	return f, nil
}

// locate returns the address of a forge's web pages, without a slash at the end, and the path of a repository on the
// forge.
func locate(repository, address string) (web *url.URL, path string, err error) {
	u, err := url.Parse(repository)
	if host, rest, ok := strings.Cut(repository, ":"); (err != nil || u.Host == "") && ok && !strings.Contains(host, "/") {
		u, err = &url.URL{Scheme: "ssh", Host: host[strings.LastIndex(host, "@")+1:],
			Path: "/" + strings.TrimPrefix(rest, "/")}, nil
	}
	if err != nil || u.Host == "" {
		return nil, "", ErrRepository
	}
	web = &url.URL{Scheme: "https", Host: u.Hostname()}
	switch u.Scheme {
	case "http", "https":
		web.Scheme, web.Host = u.Scheme, u.Host
	default: // the port of ssh is not that of the web pages
		if strings.Contains(web.Host, ":") {
			web.Host = net.JoinHostPort(web.Host, "443")
		}
	}
	path = u.Path
	if address != "" {
		given, err := url.Parse(address)
		if err != nil || given.Host == "" || given.User != nil || given.Scheme != "http" && given.Scheme != "https" {
			return nil, "", fmt.Errorf("%w: the address of the forge must be an http or https URL without a user", ErrRepository)
		}
		web = &url.URL{Scheme: given.Scheme, Host: given.Host, Path: strings.TrimRight(given.Path, "/")}
		if u.Scheme == "http" || u.Scheme == "https" {
			path = strings.TrimPrefix(path, web.Path)
		}
	}
	path = strings.Trim(strings.TrimSuffix(strings.TrimRight(path, "/"), ".git"), "/")
	if !strings.Contains(path, "/") {
		return nil, "", fmt.Errorf("%w: want the path OWNER/NAME, got %q", ErrRepository, path)
	}
	return web, path, nil
}

// kindOf returns the kind of forge that the name of a host indicates, or "" if it indicates none.
func kindOf(host string) Kind {
	host = strings.ToLower(host)
	for _, k := range []struct {
		word string
		kind Kind
	}{{"github", GitHub}, {"gitlab", GitLab}, {"gitea", Gitea}, {"forgejo", Gitea}, {"codeberg", Gitea}} {
		if strings.Contains(host, k.word) {
			return k.kind
		}
	}
	return ""
}

// Open creates a pull request. If a pull request for the same branches is open, Open changes its description instead.
// Open shortens a description that is longer than MaxBody.
func (f *Forge) Open(ctx context.Context, p PullRequest) (Opened, error) {
	if len(p.Body) > MaxBody {
		p.Body = strings.ToValidUTF8(p.Body[:MaxBody], "") + "\n..."
	}
	found, err := f.api.find(ctx, p)
	if err != nil {
		return Opened{}, fmt.Errorf("find pull request: %w", err)
	}
	if found.Number > 0 {
		if found, err = f.api.update(ctx, found.Number, p); err != nil {
			err = fmt.Errorf("change pull request: %w", err)
		}
		return found, err
	}
	made, err := f.api.create(ctx, p)
	if err != nil {
		return Opened{}, fmt.Errorf("create pull request: %w", err)
	}
	made.Created = true
	return made, nil
}

// caller sends requests to the REST API of a forge.
type caller struct {
	base   string // address of the API
	token  string
	scheme string // text before the token in the header Authorization; "": the header is Private-Token instead
	header http.Header
	http   *http.Client
}

// call sends a request and decodes the JSON answer into result. If body is not nil, it is sent as JSON. call returns an
// *Error if the status is not 2xx.
func (c *caller) call(ctx context.Context, method, path string, query url.Values, body, result any) error {
	address := c.base + path
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	var in io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		in = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, address, in)
	if err != nil {
		return err
	}
	for name, values := range c.header {
		req.Header[name] = values
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("User-Agent", "artifactfs")
	switch {
	case c.token == "":
	case c.scheme == "":
		req.Header.Set("Private-Token", c.token)
	default:
		req.Header.Set("Authorization", c.scheme+c.token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return err // a *url.Error contains the address, but not the header with the token
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return &Error{Status: res.StatusCode, Message: c.message(text)}
	}
	if err := json.Unmarshal(text, result); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	return nil
}

// message returns the message in the answer to a failed request as one line, in which the token is replaced by ***. The
// member "message" is a string, or with GitLab also a list or an object. GitHub adds the list "errors".
func (c *caller) message(answer []byte) string {
	var e struct {
		Message, Error, Errors any
	}
	if json.Unmarshal(answer, &e) != nil {
		return ""
	}
	var parts []string
	for _, part := range []any{e.Message, e.Error, e.Errors} {
		switch part := part.(type) {
		case nil:
		case string:
			parts = append(parts, part)
		default:
			if text, err := json.Marshal(part); err == nil {
				parts = append(parts, string(text))
			}
		}
	}
	text := strings.Join(strings.Fields(strings.Join(parts, ": ")), " ")
	if c.token != "" {
		text = strings.ReplaceAll(text, c.token, "***")
	}
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "..."
	}
	return text
}
