package transcript

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// kind is one kind of secret, such as the tokens of a service. Its regular expression is tried only at positions where
// one of its hints occurs, because a search with the expressions alone would take a hundred times as long.
type kind struct {
	// name is the name of the kind, which is part of the text that replaces a secret.
	name  string
	hints []string // lower-case texts with which the match of shape begins; nil: the variable prefixes
	// shape returns the regular expression, which must match from the beginning of the hint.
	shape func() *regexp.Regexp
	word  bool // whether the hint must be at the beginning of a word
	// secret is the number of the group of the expression that is replaced: 0 is the whole match, and a negative number
	// stands for the first group that has matched. doubt states that the expression also matches harmless text, so that
	// a match counts as a secret only if it looks random.
	secret int
	doubt  bool
	// run is a set of characters: if there is no match at a place that begins with first, there is none at the places that
	// follow in the same run of these characters. It is nil if this is not so.
	first string
	run   func(c byte) bool
}

// kinds lists all kinds of secrets, in the order in which they are searched. No kind matches the text that replaces a
// secret.
var kinds = []kind{
	{name: "private key", hints: []string{"-----begin "},
		shape: begin(`-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\z)`)},
	{name: "aws key", hints: []string{"akia", "asia", "agpa", "aida", "aroa", "anpa", "abia", "acca"},
		shape: begin(`[A-Z]{4}[A-Z0-9]{16}\b`), word: true},
	{name: "github token", hints: []string{"ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"},
		shape: begin(`(?:gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_[A-Za-z0-9_]{22,255})`), word: true},
	{name: "gitlab token", hints: []string{"gl"},
		shape: begin(`gl(?:pat|ptt|dt|rt|cbt|soat|ft|imt|agent|oas|ffct)-[A-Za-z0-9_-]{20,}`), word: true},
	{name: "slack token", hints: []string{"xox", "xapp-"}, shape: begin(`(?:xox[abeoprs]|xapp)-[A-Za-z0-9-]{10,}`),
		word: true},
	{name: "slack webhook", hints: []string{"hooks.slack.com/"},
		shape: begin(`hooks\.slack\.com/(?:services|workflows|triggers)/([A-Za-z0-9_/+-]{20,})`), secret: 1},
	{name: "google key", hints: []string{"aiza", "ya29.", "gocspx-"},
		shape: begin(`(?:AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,})`), word: true},
	{name: "npm token", hints: []string{"npm_"}, shape: begin(`npm_[A-Za-z0-9]{36,}`), word: true},
	{name: "pypi token", hints: []string{"pypi-"}, shape: begin(`pypi-[A-Za-z0-9_-]{50,}`), word: true},
	{name: "api key", hints: []string{"sk-"}, shape: begin(`sk-[A-Za-z0-9_-]{20,}`), word: true, doubt: true},
	{name: "api key", hints: []string{"sk_", "rk_", "hf_", "dckr_pat_", "dop_v1_", "sg."},
		shape: begin(`(?:[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|hf_[A-Za-z0-9]{30,}|dckr_pat_[A-Za-z0-9_-]{20,}|` +
			`dop_v1_[a-f0-9]{64}|SG\.[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{40,})`), word: true},
	{name: "token", shape: begin(`(?i)[a-z0-9_.-]{2,}?[a-z0-9][a-z0-9_.~|:+/-]{13,}=*`), word: true, doubt: true},
	{name: "token", hints: []string{"4b1d", "absk", "akcp", "aqvn", "cmvmdu", "dapi", "eaac", "eaam", "ezak", "eztk",
		"ltai", "pat", "sk"},
		shape: begin(`(?:4b1d[A-Za-z0-9]{38}|ABSK[A-Za-z0-9+/]{109,}|AKCp[A-Za-z0-9]{69}|AQVN[A-Za-z0-9_-]{35,38}|` +
			`cmVmdU[A-Za-z0-9]{58}|dapi[a-f0-9]{32}|EAA[CM][A-Za-z0-9]{100,}|EZ[AT]K[A-Za-z0-9]{54}|LTAI[A-Za-z0-9]{20}|` +
			`pat[A-Za-z0-9]{14}\.[a-f0-9]{64}|SK[a-fA-F0-9]{32})\b`), word: true},
	{name: "token", hints: []string{".webhook.office.com/"}, shape: begin(`\.webhook\.office\.com/([A-Za-z0-9@/_-]{20,})`),
		secret: 1},
	{name: "token", hints: []string{"_gitlab_session"}, shape: begin(`_gitlab_session=([A-Za-z0-9]{16,})`), secret: 1},
	{name: "jwt", hints: []string{"eyj"}, shape: begin(`eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}`),
		word: true, first: "eyJ", run: func(c byte) bool { return isWord(c) || c >= 'A' && c <= 'Z' || c == '-' }},
	{name: "password", hints: []string{"://"}, shape: begin(`://[^\s/:@"'<>\\]*:([^\s/@"'<>\\]+)@`), secret: 1},
	{name: "token", hints: []string{"://"}, shape: begin(`://([A-Za-z0-9_.~%+-]{16,})@`), secret: 1, doubt: true},
	{name: "authorization", hints: []string{"authorization"},
		shape: begin(`(?i)authorization\\?["']?\s*[:=]\s*\\?["']?` +
			`(?:(?:bearer|basic|token|digest|negotiate|apikey)\s+)?([A-Za-z0-9._~+/-]{8,}=*)`), secret: 1},
	{name: "authorization", hints: []string{"bearer", "basic"},
		shape: begin(`(?i)(?:bearer|basic)\s+([A-Za-z0-9._~+/-]{16,}=*)`),
		word:  true, secret: 1, doubt: true},
	{name: "password", hints: []string{"passw", "pwd"},
		shape:  begin(`(?i)(?:passw(?:or)?d|pwd)\\?["']?\s*(?:=|:\s)\s*\\?(?:"([^"\n\\]{4,})\\?"|'([^'\n]{4,})'|([^\s"',;&|)}\]\\]{4,}))`),
		secret: -1},
	{name: "secret", hints: []string{"secret", "token", "passphrase", "api", "access", "private", "auth", "credential"},
		shape: begin(`(?i)(?:secret|token|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|auth[_-]?key|credentials?)` +
			`[a-z0-9_]{0,16}\\?["']?\s*[:=]\s*\\?["']?([^\s"',;&|<>(){}\[\]\\]{8,})`), secret: 1, doubt: true},
}

// prefixes lists the texts with which the tokens of services begin, in lower case, according to the documentation of
// the services.
var prefixes = []string{
	"a3-", "access-development-", "access-production-", "access-sandbox-", "age-secret-key-1", "api_org_", "atatt3",
	"authress_", "bedrock-api-key-", "clojars_", "dnkey-", "doo_v1_", "dor_v1_", "dp.pt.", "dt0c01.", "duffel_live_",
	"duffel_test_", "eyjrijoi", "figd_", "fio-u-", "flwpubk_", "flwseck_", "fm1a_", "fm1r_", "fm2_", "fo1_", "glc_",
	"glsa_", "gr1348941", "gsk_", "hrku-aa", "hvb.", "hvs.", "lin_api_", "lsv2_", "nrak-", "nrii-", "nrjs-", "ntn_",
	"ops_eyj", "p8e-", "pat.", "pmak-", "pnu_", "pplx-", "pscale_oauth_", "pscale_pw_", "pscale_tkn_", "pul-", "r8_",
	"rdme_", "rubygems_", "sat.", "sgp_", "sha256~", "shippo_live_", "shippo_test_", "shpat_", "shpca_", "shppa_",
	"shpss_", "sm_aat_", "sm_pat_", "sm_sat_", "sntrys_", "sntryu_", "sq0atp-", "tfp_", "tk-us-", "tvly-", "xai-",
	"xkeysib-",
}

// begin returns a function that returns a regular expression which matches only at the beginning of a text. The
// expression is compiled when it is first used, because each command and each git hook is a separate process, which
// would otherwise compile all expressions at its start.
func begin(shape string) func() *regexp.Regexp { return once(`\A(?:` + shape + `)`) }

// once returns a function that returns a regular expression. The expression is compiled when the function is first
// called.
func once(shape string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(shape) })
}

// Redact replaces each part of text that looks like a secret. It returns the result and the number of replaced secrets.
func Redact(text string) (clean string, secrets int64) {
	// Hints are compared in lower case. The copy in lower case has the same length, so positions in the copy are valid for
	// text.
	low := lower(text)
	for _, k := range kinds {
		if redacted, n := k.redact(text, low); n > 0 {
			text, low, secrets = redacted, lower(redacted), secrets+n
		}
	}
	return text, secrets
}

// lower returns text with its ASCII letters in lower case. The result has the same length, so positions are valid in
// both.
func lower(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return r >= 'A' && r <= 'Z' }) {
		return text
	}
	b := []byte(text)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// places returns the positions of all hints of the kind in low, in ascending order.
func (k kind) places(low string) (all []int) {
	if k.hints == nil {
		return wordPlaces(low)
	}
	for _, h := range k.hints {
		for from := 0; ; {
			i := strings.Index(low[from:], h)
			if i < 0 {
				break
			}
			all = append(all, from+i)
			from += i + 1
		}
	}
	slices.Sort(all)
	return all
}

// wordPlaces returns the positions in low at which a word begins with one of the texts in prefixes.
func wordPlaces(low string) (all []int) {
	by := prefixesByPair()
	for at := range max(len(low)-1, 0) {
		list := by[pair(low[at:])]
		if list == nil || at > 0 && isWord(low[at-1]) {
			continue
		}
		if slices.ContainsFunc(list, func(p string) bool { return strings.HasPrefix(low[at:], p) }) {
			all = append(all, at)
		}
	}
	return all
}

// pair returns a number for the first two bytes of text, for use as an index.
func pair(text string) int { return int(text[0])<<8 | int(text[1]) }

// prefixesByPair returns the elements of prefixes, grouped by their first two bytes.
var prefixesByPair = sync.OnceValue(func() *[1 << 16][]string {
	var by [1 << 16][]string
	for _, p := range prefixes {
		by[pair(p)] = append(by[pair(p)], p)
	}
	return &by
})

// isWord reports whether c is a lower-case letter, a digit or an underscore.
func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_'
}

// redact replaces the secrets of this kind in text, and returns the result and the number of secrets. low is text in
// lower case.
func (k kind) redact(text, low string) (string, int64) {
	var b strings.Builder
	var n int64
	last, noMatch := 0, 0
	// Matches that are no secrets may overlap. So that the time stays proportional to the size of the text, only a limited
	// number of bytes is read again. reach is the end of these matches.
	reach, again := 0, 2*len(text)+64<<10
	for _, at := range k.places(low) {
		// A hint inside an earlier match does not begin another secret. For kinds whose field word is set, a hint in the
		// middle of a word does not begin a secret either.
		if at < max(last, noMatch) || k.word && at > 0 && isWord(low[at-1]) {
			continue
		}
		m := k.shape().FindStringSubmatchIndex(text[at:])
		if m == nil {
			if k.run != nil && strings.HasPrefix(text[at:], k.first) {
				for noMatch = at; noMatch < len(text) && k.run(text[noMatch]); noMatch++ {
				}
			}
			continue
		}
		from, to := k.place(m)
		from, to = at+from, at+to
		// A placeholder is not a secret. If k.doubt is set, a value that does not look random is not a secret either.
		// Only in a text that consists of hints, the limit is exceeded, and the rest of such a match is removed.
		if value := text[from:to]; placeholder(value) || k.doubt && !random(value) {
			if at >= reach || again > 0 {
				again -= max(0, min(reach, to)-at)
				reach = max(reach, to)
				continue
			}
		}
		b.WriteString(text[last:from])
		b.WriteString("[redacted " + k.name + "]")
		last = to
		n++
	}
	if n == 0 {
		return text, 0
	}
	b.WriteString(text[last:])
	return b.String(), n
}

// place returns the start and end of the secret within a match. m is the result of FindStringSubmatchIndex.
func (k kind) place(m []int) (from, to int) {
	if k.secret >= 0 {
		return m[2*k.secret], m[2*k.secret+1]
	}
	for i := 2; i < len(m); i += 2 {
		if m[i] >= 0 {
			return m[i], m[i+1]
		}
	}
	return m[0], m[1]
}

// placeholder reports whether a value stands for a secret instead of being one: a variable, asterisks, or the result of
// an earlier redaction.
func placeholder(v string) bool {
	low := strings.ToLower(v)
	switch {
	case strings.HasPrefix(v, "$"), strings.HasPrefix(v, "%"), strings.HasPrefix(v, "<"),
		strings.HasPrefix(v, "[redacted"), strings.HasPrefix(v, "{{"):
		return true
	case strings.Trim(v, "*") == "", strings.Trim(low, "x") == "", strings.Trim(v, ".") == "":
		return true
	case low == "null", low == "none", low == "true", low == "false", low == "undefined", low == "string", low == "nil":
		return true
	}
	for _, p := range []string{"process.env", "os.environ", "os.getenv", "env.", "getenv(", "secrets.", "your_",
		"your-", "redacted"} {
		if strings.HasPrefix(low, p) {
			return true
		}
	}
	return false
}

const (
	leastRandom  = 8   // minimum length in bytes of a random value; shorter ones cannot be distinguished from words
	leastEntropy = 3.0 // minimum entropy of a random value in bits per byte; most words have less
)

// random reports whether a value looks randomly generated: it is long enough, consists of many different characters,
// and mixes digits with letters or upper case with lower case.
func random(v string) bool {
	if len(v) < leastRandom {
		return false
	}
	var counts [256]int
	digits, upper, lower, changes := 0, 0, 0, 0
	// changes counts the transitions between the classes digit, upper case, lower case and other. Random text has many
	// transitions.
	class := byte(0)
	// Count the bytes of each class, and of each value for the entropy.
	for i := range len(v) {
		c := v[i]
		counts[c]++
		now := byte('.')
		switch {
		case c >= '0' && c <= '9':
			digits++
			now = '0'
		case c >= 'A' && c <= 'Z':
			upper++
			now = 'A'
		case c >= 'a' && c <= 'z':
			lower++
			now = 'a'
		}
		if now != class && i > 0 {
			changes++
		}
		class = now
	}
	if digits+upper+lower < len(v)*3/4 {
		return false
	}
	entropy := 0.0
	for _, n := range counts {
		if n > 0 {
			p := float64(n) / float64(len(v))
			entropy -= p * math.Log2(p)
		}
	}
	mixed := digits > 0 && upper+lower > 0 || upper > 0 && lower > 0 && changes > len(v)/4
	return entropy >= leastEntropy && mixed && changes >= 3
}
