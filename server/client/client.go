// Package client is a client of the REST API of artifactfs serve, which is that of Cloudflare Artifacts with
// extensions. It works with every server that has this API; the doc comments state which fields and methods are
// extensions of artifactfs serve.
//
//	c, err := client.New(client.Options{URL: "http://127.0.0.1:8790", Token: token})
//	created, err := c.CreateRepo(ctx, "team", client.CreateRepo{Name: "app"})
//	// git clone created.Remote, with created.Token as password
//
// If the server reports a failure, the methods return an *Error; if no server answers, the error wraps ErrUnreachable.
// A request that is answered with status 503 is repeated up to four times, each time after the delay in the header
// Retry-After, but at most 5 s. The methods of Client may be called from any goroutine.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/internal/backoff"
	"github.com/artifactfs/artifactfs/internal/clock"
)

const (
	maxAnswer = 64 << 20 // maximum size of a JSON answer in bytes
	retries   = 4        // maximum number of repetitions of a request after status 503
)

// pauses are the pauses before a request is repeated. The server can request longer ones, up to pauses.Longest.
var pauses = backoff.Backoff{First: 200 * time.Millisecond, Longest: 5 * time.Second}

// Options configures a Client.
type Options struct {
	// URL is the address of the server, such as http://127.0.0.1:8790. It may end in the path under which a proxy serves
	// it.
	URL string
	// Token is a token for the REST API: an admin or owner token. A repository token allows only git access and the
	// methods of Repository.
	Token string
	// Account is the id of the account, with 32 hexadecimal digits. If it is "", the client requests the id from the
	// server.
	Account string
	// HTTP sends the requests. nil stands for a client without a time limit, so that only the context of a call limits
	// it. Redirections are not followed, unless HTTP has a CheckRedirect: net/http would send the token to other ports,
	// to subdomains, and from https to http.
	HTTP *http.Client
}

// Client sends requests to the REST API of one server. Its methods may be called from any goroutine.
type Client struct {
	base  *url.URL
	token string
	http  *http.Client

	mu      sync.Mutex
	account string // id of the account; "" until it is known; protected by mu
}

// New returns a client for the server at o.URL. It returns an error if the URL is invalid. It sends no request.
func New(o Options) (*Client, error) {
	base, err := url.Parse(o.URL)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("open server %q: URL must begin with http or https", withoutSecrets(o.URL))
	}
	if base.User != nil {
		return nil, fmt.Errorf("open server %q: URL must not contain a user or password", withoutSecrets(o.URL))
	}
	base.Path = strings.TrimRight(base.Path, "/")
	base.RawQuery, base.Fragment = "", ""
	c := &Client{base: base, token: o.Token, http: &http.Client{}, account: o.Account}
	if o.HTTP != nil {
		*c.http = *o.HTTP
	}
	if c.http.CheckRedirect == nil {
		c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	return c, nil
}

// withoutSecrets returns a URL without its user, password and query, for the text of an error.
func withoutSecrets(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "(malformed URL)"
	}
	u.User, u.RawQuery = nil, ""
	return u.String()
}

// URL returns the address of the server, without a slash at its end.
func (c *Client) URL() string { return c.base.String() }

// Account returns the id of the account, which is part of the path of each request. If Options.Account is "", the first
// call requests the id from the server. It returns an error if the token has no account there.
func (c *Client) Account(ctx context.Context) (string, error) {
	c.mu.Lock()
	known := c.account
	c.mu.Unlock()
	if known != "" {
		return known, nil
	}
	var all []struct {
		ID string `json:"id"`
	}
	if _, err := c.call(ctx, request{verb: "find", object: "account", method: http.MethodGet, path: "/client/v4/accounts"},
		&all); err != nil {
		return "", err
	}
	if len(all) == 0 {
		return "", errors.New("find account: the token has no account on the server")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.account = all[0].ID
	return c.account, nil
}

// request describes one request to the REST API.
type request struct {
	verb, object string // verb and object begin the texts of errors, such as "create" and "repository team/app"
	method       string
	path         string // escaped path, relative to the address of the server
	query        url.Values
	body         any    // value to send as JSON; nil: the request has no JSON body
	raw          []byte // body to send unchanged; nil: the request has no such body
	header       http.Header
}

// below returns the escaped path of a resource of the account, relative to the address of the server.
func (c *Client) below(ctx context.Context, parts ...string) (string, error) {
	account, err := c.Account(ctx)
	if err != nil {
		return "", err
	}
	return "/client/v4/accounts/" + url.PathEscape(account) + "/artifacts" + join(parts), nil
}

// join returns the escaped parts as a path that begins with a slash.
func join(parts []string) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString("/" + url.PathEscape(p))
	}
	return b.String()
}

// envelope is the form of each JSON answer of the server.
type envelope struct {
	Result  json.RawMessage `json:"result"`
	Success bool            `json:"success"`
	Errors  []struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Source  struct {
			Pointer string `json:"pointer"`
		} `json:"source"`
		Conflict *Conflict `json:"conflict"`
	} `json:"errors"`
	Info PageInfo `json:"result_info"`
}

// PageInfo describes one page of a list. Cursor is the value by which the next page is requested, "" on the last page.
type PageInfo struct {
	Cursor     string `json:"cursor,omitempty"`
	Page       int    `json:"page,omitempty"`
	PerPage    int    `json:"per_page,omitempty"`
	Count      int    `json:"count"`
	TotalPages int    `json:"total_pages,omitempty"`
	TotalCount int    `json:"total_count,omitempty"`
}

// call sends a request and decodes the field "result" of the answer into result. result may be nil.
func (c *Client) call(ctx context.Context, r request, result any) (PageInfo, error) {
	res, err := c.send(ctx, r)
	if err != nil {
		return PageInfo{}, err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusNoContent {
		return PageInfo{}, nil
	}
	var e envelope
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err == nil {
		err = json.Unmarshal(body, &e)
	}
	if err == nil && result != nil && len(e.Result) > 0 {
		err = json.Unmarshal(e.Result, result)
	}
	if err != nil {
		return PageInfo{}, fmt.Errorf("%s %s: read answer: %w", r.verb, r.object, err)
	}
	return e.Info, nil
}

// send sends a request, and repeats it up to retries times while the server answers with status 503. It returns an
// answer with a status below 300, whose body the caller must close; any other answer is returned as an *Error.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	for try := 0; ; try++ {
		res, err := c.once(ctx, r)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", r.verb, r.object, err)
		}
		if res.StatusCode < 300 {
			return res, nil
		}
		failure := failureOf(r, res)
		res.Body.Close()
		if res.StatusCode != http.StatusServiceUnavailable || try == retries {
			return nil, failure
		}
		if !clock.Wait(ctx, min(max(failure.RetryAfter, pauses.Pause(try+1)), pauses.Longest)) {
			return nil, failure
		}
	}
}

// once sends a request one time and returns the answer, whatever its status is. It returns an error that wraps
// ErrUnreachable if there is no answer.
func (c *Client) once(ctx context.Context, r request) (*http.Response, error) {
	u := c.base.String() + r.path
	if len(r.query) > 0 {
		u += "?" + r.query.Encode()
	}
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	} else if r.raw != nil {
		body = bytes.NewReader(r.raw)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u, body)
	if err != nil {
		return nil, err
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	switch {
	case r.body != nil:
		req.Header.Set("Content-Type", "application/json")
	case r.raw != nil:
		req.Header.Set("Content-Type", "application/octet-stream")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	req.Header.Set("User-Agent", "artifactfs")
	res, err := c.http.Do(req)
	var of *url.Error
	if errors.As(err, &of) { // drop the URL from the error, because the caller adds the verb and the object
		err = of.Err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return res, nil
}

// failureOf returns the *Error for an answer with a status of 300 or above.
func failureOf(r request, res *http.Response) *Error {
	e := &Error{Verb: r.verb, Object: r.object, Status: res.StatusCode,
		RetryAfter: backoff.RetryAfter(res.Header.Get("Retry-After"), time.Now(), math.MaxInt64)}
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer)) // an incomplete body leaves the message empty
	var in envelope
	if err := json.Unmarshal(text, &in); err == nil && len(in.Errors) > 0 {
		e.Code, e.Message, e.Pointer = in.Errors[0].Code, in.Errors[0].Message, in.Errors[0].Source.Pointer
		e.Conflict = in.Errors[0].Conflict
	}
	if e.Message == "" {
		e.Message = "server answered " + res.Status
	}
	return e
}
