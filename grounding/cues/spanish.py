"""Spanish cues, for workspaces that choose them. Accents make no difference."""

from __future__ import annotations

from grounding.cues.kinds import Cues, phrases

SPANISH = Cues(
    small_talk=phrases("""
        hola, buenas, buenos días, buen día, buenas tardes, buenas noches, gracias, muchas gracias, mil gracias
        muchísimas gracias, te lo agradezco, vale, de acuerdo, ok, perfecto, genial, excelente, estupendo, bien
        muy bien, entendido, claro, listo, de nada, no hay problema, adiós, chao, chau, hasta luego, hasta mañana
        hasta pronto, nos vemos, qué tal, cómo estás, cómo está, cómo va, cómo te va, estás ahí, lo siento, perdón
        disculpa, encantado, encantada, buen trabajo, eso ayuda
    """),
    filler=phrases("""
        a, todos, todas, y, muy, por, favor, tu, su, la, el, ayuda, respuesta, eso, esto, es, hoy, otra, vez, bot
        equipo, amigo, amiga, ya, pues, bueno, entonces, de, nuevo, me, te
    """),
    asks_history=phrases("""
        qué decidimos, qué hemos, qué acordamos, qué dijimos, qué dijiste, qué has dicho, qué dije, qué te dije
        qué te pregunté, qué quieres decir, a qué te refieres, de qué hablamos, de qué hablábamos, dónde estábamos
        cuándo dijimos, te acuerdas, recuerdas, te he dicho, te dije ya, cómo me llamo, quién soy
        cuál fue mi última, cuál fue tu última, cuál era mi, cuál era la pregunta, resume nuestra, resúmeme nuestra
        resume esta conversación, resume este chat, repite eso, repite tu última, dilo otra vez
        nuestra última conversación
    """),
    refers_to_history=phrases("""
        como acordamos, como quedamos, como hablamos, como dijimos, como dije, como te dije, como dijiste
        como mencionaste, como comentamos, como antes, dijiste, mencionaste, sugeriste, propusiste, me dijiste
        te dije, te conté, te mencioné, lo que hablamos, lo que dijimos, antes dijiste, anteriormente
        mensaje anterior, pregunta anterior, respuesta anterior, último mensaje, última pregunta, última respuesta
        esta conversación, este chat, este hilo, nuestra conversación, volviendo a lo que, volviendo a
    """),
    weakly_asks_history=phrases("qué ha cambiado, qué cambió"),
    continues=phrases("continúa, continua, sigue, adelante, prosigue, y luego, más, resumen, resume"),
    follow_ups=phrases("y, o, pero, qué pasa con, qué hay de"),
    documents=phrases("""
        documentación, nuestra política, la política de, las políticas, nuestras políticas, política de vacaciones
        política de reembolsos, política de precios, política de devoluciones, lista de precios, precios, manual
        manuales, guía, guías, guía de estilo, base de conocimientos, base de conocimiento, wiki, readme
        repositorio, repo, changelog, términos de servicio, condiciones de uso, preguntas frecuentes, qué archivo
        qué archivos, qué documento, qué documentos, qué fichero, qué página, en qué archivo, en qué documento
        el documento, los documentos, nuestros documentos, en los documentos, en el archivo, según nuestra
        según nuestro
    """),
    search=phrases("busca, buscar, encuentra, encontrar, consulta, dónde está, dónde están, dónde encuentro"),
    anchors=phrases("""
        proyecto, proyectos, archivo, archivos, fichero, ficheros, carpeta, carpetas, directorio, directorios, ruta
        documento, documentos, espacio de trabajo, markdown
    """),
    parts=phrases("página, páginas, sección, secciones, capítulo, capítulos, apéndice, anexo"),
    containers=phrases("""
        documentación, documento, documentos, archivo, archivos, fichero, página, carpeta, manual, wiki, busca, buscar
        encuentra, qué, cuál, muéstrame, dime, explica, describe, contiene, menciona, dice, según, por favor, gracias
        hola, como acordamos, como dijimos
    """),
    question_words=phrases("""
        cómo, qué, por qué, cuándo, dónde, cuál, cuáles, quién, quiénes, cuánto, cuánta, cuántos, cuántas, puede
        puedes, podrías, hay, es, son, está, están, en qué, tiene
    """),
    assistant=phrases("tú, tu, tus, ti, contigo, usted"),
    polite_requests=phrases("tu ayuda"),
)
"""Not complete: a start for workspaces that extend it."""
