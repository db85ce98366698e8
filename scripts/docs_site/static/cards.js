// The cards have the colours of the page. The viewer follows the system; the reader may choose otherwise with the page's button.
const system = matchMedia('(prefers-color-scheme: dark)');
function applyTheme() {
  const chosen = document.body.dataset.theme;
  const dark = chosen === 'dark' || (chosen !== 'light' && system.matches);
  document.documentElement.classList.toggle('bnb-dark', dark);
}
system.addEventListener('change', applyTheme);
new MutationObserver(applyTheme).observe(document.body, { attributes: true, attributeFilter: ['data-theme'] });
applyTheme();
