package transcript

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// letters returns a random-looking text of n bytes that secret scanners of this repository do not report.
func letters(n int) string { return strings.Repeat("a1B2c3D4e5F6g7H8i9J0", 20)[:n] }

func TestSecretsOfKnownFormsAreRemoved(t *testing.T) {
	key := "-----BEGIN " + "RSA PRIVATE KEY-----\nMIIE" + letters(60) + "\n-----END RSA PRIVATE KEY-----"
	for text, want := range map[string]string{
		"id AKIA" + "IOSFODNN7EXAMPLE.":                                    "id [redacted aws key].",
		"aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": "aws_secret_access_key = [redacted secret]",
		"push with ghp_" + letters(36) + " now":                            "push with [redacted github token] now",
		"github_pat_" + letters(40):                                        "[redacted github token]",
		"glpat-" + letters(20):                                             "[redacted gitlab token]",
		"xoxb-123456789012-" + letters(24):                                 "[redacted slack token]",
		"https://hooks.slack.com/services/T00000000/B00000000/" +
			letters(24): "https://hooks.slack.com/services/[redacted slack webhook]",
		"?key=AIza" + letters(35): "?key=[redacted google key]",
		"ya29." + letters(40):     "[redacted google key]",
		"//registry.npmjs.org/:_authToken=npm_" +
			letters(36): "//registry.npmjs.org/:_authToken=[redacted npm token]",
		"pypi-" + letters(60):    "[redacted pypi token]",
		"sk-proj-" + letters(40): "[redacted api key]",
		"sk_live_" + letters(24): "[redacted api key]",
		"hf_" + letters(34):      "[redacted api key]",
		"cookie eyJ" + letters(20) + ".eyJ" + letters(30) + "." + letters(43): "cookie [redacted jwt]",
		"before\n" + key + "\nafter":                                          "before\n[redacted private key]\nafter",
		"cut -----BEGIN OPENSSH PRIVATE " + "KEY-----\nb3BlbnNz":              "cut [redacted private key]",
		"git clone https://joe:hunter2@example.org/app.git":                   "git clone https://joe:[redacted password]@example.org/app.git",
		"git clone https://" + letters(30) +
			"@example.org/app": "git clone https://[redacted token]@example.org/app",
		"postgres://app:" +
			"s3cr3t@db:5432/app": "postgres://app:[redacted password]@db:5432/app",
		"curl -H 'Authorization: Bearer " + letters(24) +
			"'": "curl -H 'Authorization: Bearer [redacted authorization]'",
		"Authorization: Basic am9lOmh1bnRlcjI=": "Authorization: Basic [redacted authorization]",
		"used bearer " + letters(30) +
			" there": "used bearer [redacted authorization] there",
		"export DB_PASSWORD=hunter2 && run": "export DB_PASSWORD=[redacted password] && run",
		"password: hunter2":                 "password: [redacted password]",
		"PASSWD='correct horse battery'":    "PASSWD='[redacted password]'",
		"DEPLOY_TOKEN=" + letters(20):       "DEPLOY_TOKEN=[redacted secret]",
		`{\"client_secret\": \"` + letters(20) +
			`\"}`: `{\"client_secret\": \"[redacted secret]\"}`,
		`api-key: "` + letters(32) + `", AKIA` +
			`IOSFODNN7EXAMPLE`: `api-key: "[redacted secret]", [redacted aws key]`,
		"two ghp_" + letters(36) + " and gho_" + strings.ToUpper(letters(36)) +
			".": "two [redacted github token] and [redacted github token].",
	} {
		got, n := Redact(text)
		if got != want || n == 0 {
			t.Errorf("redact %q\n got %q (%d)\nwant %q", text, got, n, want)
		}
		if again, n := Redact(got); again != got || n != 0 {
			t.Errorf("redact %q: got %q, and the second time %q", text, got, again)
		}
	}
}

// TestTokensOfServices checks that tokens of services are found by their prefixes, whatever follows them in a sentence
// or in JSON.
func TestTokensOfServices(t *testing.T) {
	for _, token := range []string{
		"hvs." + letters(24), "glsa_" + letters(32) + "_1a2B3c4D", "lin_api_" + letters(40), "pplx-" + letters(48),
		"gsk_" + letters(40),
		"shpat_" + "0a1b2c3d4e5f60718293a4b5c6d7e8f9", "dapi" + "0a1b2c3d4e5f60718293a4b5c6d7e8f9",
		"AGE-SECRET-KEY-1" + strings.ToUpper(letters(58)),
		"SK" + "0a1b2c3d4e5f60718293a4b5c6d7e8f9", "pscale_tkn_" + letters(40), "fm2_" + letters(80), "ops_eyJ" + letters(60),
		"PMAK-" + letters(24) + "-" + letters(34),
	} {
		for _, c := range []string{"see %.", "(%)", `{"t":"%"}`, "%,next", "X=%", "'%'"} {
			before, after, _ := strings.Cut(c, "%")
			got, n := Redact(before + token + after)
			if n != 1 || !strings.HasPrefix(got, before+"[redacted ") || strings.Contains(got, token[len(token)/2:]) {
				t.Errorf("redact %q in %q: got %q, %d", token, c, got, n)
			}
		}
	}
	for _, text := range []string{
		"pat.match(text)", "pul-requests are open", "live_test_upload_v2_with_3_parts", "xai-like-names-are-words",
		"skipped 3 of 12", "SKIP1234", "patch.go:12", "dapi is a word", "AAAAEAACabCd1234EfGh5678", "a3-column layout",
		"shpat_ is the prefix",
	} {
		if got, n := Redact(text); got != text || n != 0 {
			t.Errorf("redact %q, which has no secret: got %q", text, got)
		}
	}
}

func TestOrdinaryTextIsKept(t *testing.T) {
	for _, text := range []string{
		"", "the password is not known", "tokens: 12345", "token = next()", "max_tokens=4096", "SECRET=$SECRET",
		"password=${DB_PASSWORD}", "API_KEY=<your key>",
		"password: ********", `token = os.environ["TOKEN"]`, "secret: process.env.SECRET_TOKEN_NAME",
		"basic authentication is enough for everybody",
		"commit 0123456789abcdef0123456789abcdef01234567", "sha256:" + strings.Repeat("ab12", 16),
		"https://example.org/a:b@c", "git@github.com:team/app.git",
		"ssh://git@example.org/app.git", "func tokenize(keyword string) error", "key: value",
		"primary_key: customer_identifier", "sk-learn is a library",
		"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----", "-----BEGIN PUBLIC KEY-----",
		"01J9ZK3V9Q2M4N6P8R0T1V3X5Z", "passwordless login", "bearer of bad news, and of a longword",
	} {
		if got, n := Redact(text); got != text || n != 0 {
			t.Errorf("redact %q, which has no secret: got %q", text, got)
		}
	}
}

func TestJSONKeepsItsShape(t *testing.T) {
	secret := "ghp_" + letters(36)
	for in, want := range map[string]string{
		`{"b": 1, "a": [true, null, 1.50, "x"]}`:                `{"b":1,"a":[true,null,1.50,"x"]}`,
		`{"text":"see ` + secret + `","n":1e400}`:               `{"text":"see [redacted github token]","n":1e400}`,
		`{"\u0067hp_` + letters(36) + `":1}`:                    `{"[redacted github token]":1}`,
		`{"t":"\u0067hp_` + letters(36) + `\n<&>"}`:             `{"t":"[redacted github token]\n<&>"}`,
		`{"password":"hunter2","user":"joe"}`:                   `{"password":"[redacted password]","user":"joe"}`,
		`{"db_password":["hunter2","hunter3"],"list":["x"]}`:    `{"db_password":["[redacted db_password]","[redacted db_password]"],"list":["x"]}`,
		`{"password":{"rule":"at least eight"},"a":"b"}`:        `{"password":{"rule":"at least eight"},"a":"b"}`,
		`{"token":"the","tokens":12,"key":"name"}`:              `{"token":"the","tokens":12,"key":"name"}`,
		`{"access_token":"` + letters(24) + `"}`:                `{"access_token":"[redacted access_token]"}`,
		`{"headers":{"Authorization":"Bearer abcdefgh"}}`:       `{"headers":{"Authorization":"[redacted authorization]"}}`,
		`{"password":"$DB_PASSWORD","secret":"***","pwd":"no"}`: `{"password":"$DB_PASSWORD","secret":"***","pwd":"no"}`,
		`{"a":"\"\\","b":"\\"}`:                                 `{"a":"\"\\","b":"\\"}`,
		` "` + secret + `" `:                                    `"[redacted github token]"`,
	} {
		got, n, err := RedactJSON([]byte(in))
		if err != nil || string(got) != want || (n > 0) != strings.Contains(want, "[redacted") {
			t.Errorf("redact %s\n got %s, %d, %v\nwant %s", in, got, n, err, want)
		}
	}
	for _, in := range []string{"", "{", `{"a":}`, `{} {}`, "x"} {
		if _, _, err := RedactJSON([]byte(in)); err == nil {
			t.Errorf("invalid JSON %q was accepted", in)
		}
	}
}

func FuzzRedactJSON(f *testing.F) {
	f.Add([]byte(`{"password":"hunter2","a":["AKIAIOSFODNN7EXAMPLE",{"\u0062":"\\\""}]}`))
	f.Add([]byte(`["https://a:b@c", "-----BEGIN PRIVATE KEY-----", "Bearer a1B2c3D4e5F6g7H8i9"]`))
	f.Add([]byte("\"\xff\""))
	f.Fuzz(func(t *testing.T, in []byte) {
		out, n, err := RedactJSON(in)
		if json.Valid(in) != (err == nil) {
			t.Fatalf("redact JSON that is valid: %v, got error %v", json.Valid(in), err)
		}
		if err != nil {
			return
		}
		if !json.Valid(out) {
			t.Fatalf("redact %q: got invalid JSON %q", in, out)
		}
		again, more, err := RedactJSON(out)
		if err != nil || n == 0 && string(again) != string(out) {
			t.Fatalf("redact the redacted %q: got %q (%d), %v", out, again, more, err)
		}
	})
}

func FuzzMergeObjects(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":[2]}`), []byte(`{"b":{"c":"d"},"a\u0000":null}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		merged, err := mergeObjects(a, b)
		if err == nil && json.Valid(a) && json.Valid(b) && !json.Valid(merged) {
			t.Fatalf("merge of %q and %q: got invalid JSON %q", a, b, merged)
		}
	})
}

func TestObjectsAreMerged(t *testing.T) {
	for _, c := range [][3]string{
		{`{}`, `{}`, `{}`}, {`{"a":1}`, `{"b":2}`, `{"a":1,"b":2}`},
		{`{"b":1,"a":{"x":1}}`, `{"a":{"y":2},"c":[3]}`, `{"b":1,"a":{"y":2},"c":[3]}`},
		{`{"a":1}` + "\n" + `{"a":2,"b":1}`, `{"c":3}`, `{"a":2,"b":1,"c":3}`}, // two lines, as git notes merge writes them
	} {
		if got, err := mergeObjects([]byte(c[0]), []byte(c[1])); err != nil || string(got) != c[2] {
			t.Errorf("merge of %s and %s: got %s, %v", c[0], c[1], got, err)
		}
	}
}

func BenchmarkRedact(b *testing.B) {
	text :=
		strings.Repeat("the token of a key is not a secret, says https://example.org/ to whom it concerns; password rules apply. ", 640)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		Redact(text)
	}
}

// within fails the test if f, which takes milliseconds if its time is proportional to the size of its input, takes so
// long that it is not.
func within(t *testing.T, limit time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("%s takes longer than %v", what, limit)
	}
}

// Texts that consist of the beginnings of secrets take no more than a time that is proportional to their size.
func TestTimeIsProportional(t *testing.T) {
	const size = 2 << 20
	for _, unit := range []string{"sk-", "token=", "secret: ", "password=$", "password='", `pwd="`, "-eyJ", "-eyJaaaaaaaa",
		".eyJaaaaaaaa", "-sgp_", "pplx-", "api_key=authorization:", "://a:", "bearer ", "-----BEGIN PRIVATE KEY", "/ABSK+"} {
		text := strings.Repeat(unit, size/len(unit))
		within(t, time.Minute, "redaction of "+unit, func() { Redact(text) })
	}
	half := strings.Repeat("-eyJaaaaaaaa", size/24)
	within(t, time.Minute, "redaction of two runs", func() { Redact(half + ".eyJ" + half) })
	name := strings.Repeat("k", size/2)
	within(t, time.Minute, "redaction of a long name", func() {
		clean, n, err := RedactJSON([]byte(`{"` + name + `_token":["` + strings.Repeat(`a","`, size/8) + letters(20) + `"]}`))
		if err != nil || n != 1 || len(clean) > size+1000 {
			t.Errorf("redact an array with a long name: got %d secrets in %d bytes, error %v", n, len(clean), err)
		}
	})
	for _, k := range kinds {
		hints := k.hints
		if hints == nil {
			hints = prefixes
		}
		for _, h := range hints {
			for _, end := range []string{"-", "=", "=$", ".A1b2"} {
				within(t, 10*time.Second, "redaction of "+h+end, func() { Redact(strings.Repeat(h+end, 32<<10/len(h+end))) })
			}
		}
	}
}

// The secrets before and after a text that consists of the beginnings of secrets are removed, and other text is kept.
func TestSecretsAroundBeginnings(t *testing.T) {
	for _, unit := range []string{"sk-", "token=", "password=$", "-eyJ", "-sgp_"} {
		key := "sk-proj-" + letters(40)
		text := "token: plain " + key + " " + strings.Repeat(unit, 100000) + " " + key + " token: $plain " +
			"eyJ" + letters(20) + ".eyJ" + letters(30) + "." + letters(43) + " end"
		got, n := Redact(text)
		const begin, end = "token: plain [redacted api key] ", " [redacted api key] token: $plain [redacted jwt] end"
		if !strings.HasPrefix(got, begin) || !strings.HasSuffix(got, end) || n < 3 || strings.Contains(got, key) {
			t.Errorf("text of %q: got %d secrets, %.100s ... %s", unit, n, got, got[max(0, len(got)-100):])
		}
	}
	text := "EYJ-eyJ" + letters(20) + ".eyJ" + letters(30) + "." + letters(43)
	if got, _ := Redact(text); got != "EYJ-[redacted jwt]" {
		t.Errorf("token behind its beginning in upper case: got %s", got)
	}
	if got, _ := Redact("-eyJ" + letters(20) + "-" + text[4:]); got != "-[redacted jwt]" {
		t.Errorf("token behind its beginning: got %s", got)
	}
	short := strings.Repeat("token=", 20)
	if got, n := Redact(short); got != short || n != 0 {
		t.Errorf("short text without secrets: got %s", got)
	}
}
