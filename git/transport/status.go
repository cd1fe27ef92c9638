package transport

import (
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/backoff"
)

// judge returns the error that corresponds, for a git client, to the status and the content type of res. It returns nil
// if res is an answer to the request c.
func (h *web) judge(c call, res *http.Response) error {
	// Some servers answer 403 with Retry-After when the client has exceeded the rate limit.
	after := backoff.RetryAfter(res.Header.Get("Retry-After"), time.Now(), maxRetryWait)
	said := statusError("server answered " + plain([]byte(res.Status)))
	switch code := res.StatusCode; {
	case code == http.StatusOK:
		// The content type shows that a git server has answered, and not a proxy or a login page.
		if kind, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";"); strings.TrimSpace(kind) == c.answerType() {
			return nil
		}
		if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind == "text/html" &&
			c.method == http.MethodGet {
			return fmt.Errorf("%w: server answered with an HTML page", ErrNotFound) // an HTML page is often a login page
		}
		if c.service == receivePack && c.method == http.MethodGet {
			return fmt.Errorf("%w: server answered with content type %s", ErrNoPush,
				plain([]byte(res.Header.Get("Content-Type"))))
		}
		if c.method == http.MethodGet {
			return fmt.Errorf("%w: server answered with content type %s", ErrNoV2, plain([]byte(res.Header.Get("Content-Type"))))
		}
		return fmt.Errorf("%w: unexpected content type %.80q", errProtocol, res.Header.Get("Content-Type"))
	case code == 301 || code == 302 || code == 303 || code == 307 || code == 308:
		if to, err := res.Request.URL.Parse(res.Header.Get("Location")); err == nil && to.Host != "" {
			return moved{to}
		}
		return fmt.Errorf("%w: redirect without a valid location", errProtocol)
	case code == http.StatusTooManyRequests, code == http.StatusForbidden && after > 0:
		return transient{RateLimited{after}, after}
	case code == http.StatusForbidden:
		return ErrForbidden
	case code == http.StatusNotFound, code == http.StatusGone:
		return ErrNotFound
	case code == http.StatusProxyAuthRequired:
		return fmt.Errorf("%w at the proxy", ErrAuth)
	case code >= 500, code == http.StatusRequestTimeout:
		return transient{fmt.Errorf("%w: %w", ErrUnreachable, said), after}
	default:
		return said
	}
}

// statusError is an error that the server has reported with a status.
type statusError string

// Error returns the message.
func (e statusError) Error() string { return string(e) }
