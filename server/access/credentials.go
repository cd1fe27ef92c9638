package access

import (
	"encoding/base64"
	"net/url"
	"strings"
)

// credentials returns the secret in the values of the header Authorization. It returns ErrMissing if there is no value,
// and ErrInvalid if the value cannot contain a token.
func credentials(values []string) (secret string, err error) {
	if len(values) == 0 || len(values) == 1 && values[0] == "" {
		return "", ErrMissing
	}
	if len(values) > 1 {
		return "", ErrInvalid // a proxy could use another of several values than the server
	}
	scheme, rest, _ := strings.Cut(values[0], " ")
	text := strings.TrimSpace(rest)
	switch {
	case strings.EqualFold(scheme, "Bearer"):
	case strings.EqualFold(scheme, "Basic"):
		decoded, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return "", ErrInvalid
		}
		_, password, ok := strings.Cut(string(decoded), ":")
		if !ok {
			return "", ErrInvalid
		}
		text = password
	default:
		return "", ErrInvalid
	}
	if secret, ok := secretOf(text); ok {
		return secret, nil
	}
	return "", ErrInvalid
}

// secretOf returns the secret in the text of a token: the text itself, or the part of it before "?expires=". The text
// may be percent-encoded, because users put tokens into URLs.
func secretOf(text string) (string, bool) {
	if strings.Contains(text, "%") {
		plain, err := url.PathUnescape(text)
		if err != nil {
			return "", false
		}
		text = plain
	}
	secret, query, expires := strings.Cut(text, "?")
	if expires {
		unix, ok := strings.CutPrefix(query, "expires=")
		if !ok || unix == "" || strings.Trim(unix, "0123456789") != "" {
			return "", false
		}
	}
	for _, prefix := range prefixes {
		if digits, ok := strings.CutPrefix(secret, prefix); ok {
			return secret, len(digits) == 2*secretBytes && strings.Trim(digits, "0123456789abcdef") == ""
		}
	}
	return "", false
}
